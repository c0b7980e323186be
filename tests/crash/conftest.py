import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def nursery():
    """Return a process that has no devices, and plays scenarios: `nursery.py`."""
    tests = str(Path(__file__).parent.parent)
    environ = {**os.environ, "XLA_FLAGS": "", "OPENBLAS_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-W", "ignore", "-c", "from crash.nursery import main; main()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environ, **pipes) as process:
        yield process
        process.kill()  # even if it hangs


@pytest.fixture
def play(nursery, capsys):
    """Return a function that plays a scenario and returns its answer; `make soak` sees how far it is."""

    def show(scenario, said):
        if "KILLS" in os.environ:
            with capsys.disabled():
                print(f"{scenario}: {said}", flush=True)

    def one(scenario, directory, **arguments):
        request = [scenario, {"directory": str(directory), **arguments}]
        nursery.stdin.write(json.dumps(request) + "\n")
        nursery.stdin.flush()
        while "progress" in (said := json.loads(nursery.stdout.readline())):
            show(scenario, said["progress"])
        assert "answer" in said, said["traceback"]
        show(scenario, said["answer"])
        return said["answer"]

    return one
