"""Whatever manifests say and files hold: no traceback, no silent value, nothing written outside."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from soak import SEED, cases


@pytest.mark.soak
def test_no_file_of_others_makes_a_command_fail_without_a_word(python):
    count = cases(2, 2000)
    words = [*python, "-m", "cli.fuzz", "manifests,runs", str(count), str(SEED)]
    tests = str(Path(__file__).parents[1])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)])}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    *problems, numbers = map(json.loads, done.stdout.splitlines())
    assert not problems, (problems[:3], done.stderr[-2000:])
    assert numbers == {"cases": 2 * count, "problems": 0}
