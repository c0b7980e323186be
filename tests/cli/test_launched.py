"""When a command was launched is when its process began, not when Python came to our first line."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
time.sleep(1)
from meshwright.processes._internal import process_start_time
print(time.monotonic() - process_start_time())
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not say")
def test_the_time_before_our_first_line_counts():
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert 1 <= float(done.stdout) <= time.monotonic() - started + 0.1
