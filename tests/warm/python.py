"""A Python that has imported JAX already, as a fixture: `[*python, "-c", PROGRAM]` is run in a fork."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """Return the command that stands for a Python; `sys.executable` is one that has imported nothing."""
    address = str(tmp_path_factory.mktemp("warm") / "door")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    command = [sys.executable, str(HERE / "server.py"), address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environ, start_new_session=True, **pipes) as server:
        assert server.stdout.readline() == "open\n"
        yield [sys.executable, "-I", "-S", str(HERE / "stand_in.py"), address]
        server.stdin.close()
