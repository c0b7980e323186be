import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def play():
    """Return a function that plays a scenario, in a process that has no devices, and returns its answer."""
    tests = str(Path(__file__).parent.parent)
    environ = {**os.environ, "XLA_FLAGS": "", "OPENBLAS_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-W", "ignore", "-m", "crash.nursery"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environ, **pipes) as nursery:

        def one(scenario, directory, **arguments):
            request = [scenario, {"directory": str(directory), **arguments}]
            nursery.stdin.write(json.dumps(request) + "\n")
            nursery.stdin.flush()
            said = json.loads(nursery.stdout.readline())
            assert "answer" in said, said["traceback"]
            return said["answer"]

        yield one
        nursery.stdin.close()
