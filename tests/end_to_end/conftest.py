import sys
from pathlib import Path

import pytest

from end_to_end.running import SHORT, Shell


@pytest.fixture(scope="session")
def shell(python, tmp_path_factory) -> Shell:
    return Shell(python, tmp_path_factory.mktemp("shell"))


@pytest.fixture
def cold_shell(shell):
    """A shell whose Python is none but itself, so that the processes are those that are started."""
    return Shell([sys.executable], shell.folder)


@pytest.fixture(scope="session")
def uninterrupted(shell) -> Path:
    """The run directory of a short digits run that nobody disturbed, and that compiled what it needed."""
    shell = Shell(shell.python, shell.folder)
    del shell.environ["JAX_COMPILATION_CACHE_DIR"]
    shell.environ["XDG_CACHE_HOME"] = str(shell.folder / "cache")
    done = shell("demo", "digits", "workdir=uninterrupted", *SHORT)
    assert done.returncode == 0, done.stderr
    return shell.folder / "uninterrupted"
