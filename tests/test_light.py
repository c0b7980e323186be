"""What runs beside a training program, and what a shell waits for, does not load JAX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    "the help": ["-m", "meshwright", "--help"],
    "the help of a command": ["-m", "meshwright", "train", "--help"],
    "the list of runs": ["-m", "meshwright", "runs", str(Path(__file__).parent)],
    "a launcher": [
        "-m",
        "meshwright",
        "launch",
        "local",
        "-n",
        "2",
        "--",
        sys.executable,
        "-c",
        "print('started')",
    ],
    "a process that makes tokens": ["-c", "import meshwright.data._corpus._work"],
    "a process that renders chats": ["-c", "import meshwright.data._tokens._render"],
    "documents and chats": ["-c", "import meshwright as mw; mw.data.documents, mw.data.chat"],
    "stores": ["-c", "from meshwright.base import _internal as base; base.join, base.read_text"],
}


@pytest.fixture(scope="module")
def without_jax(tmp_path_factory):
    """An environment in which a program that imports JAX ends with an error."""
    folder = tmp_path_factory.mktemp("without_jax")
    (folder / "jax.py").write_text("import os\nos.write(2, b'jax was loaded\\n')\nos._exit(99)\n")
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths}


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_runs_without_jax(program, without_jax, tmp_path):
    done = subprocess.run(
        [sys.executable, *PROGRAMS[program]], cwd=tmp_path, env=without_jax, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_program_that_trains_needs_it(without_jax):
    done = subprocess.run([sys.executable, "-c", "import meshwright as mw; mw.fit"], env=without_jax)
    assert done.returncode == 99
