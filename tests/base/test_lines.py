"""Lines of several threads and processes on one screen."""

import io
import os
import subprocess
import sys

import pytest
from rich.table import Table

from meshwright.base._text import print_line
from meshwright.observe._console import Console

TWO_THREADS = """
import sys, threading
from meshwright.base._text import print_line
def write(out, text):
    for _ in range(5000):
        print_line(text, out)
threads = [threading.Thread(target=write, args=each) for each in ((sys.stdout, "out"), (sys.stderr, "err"))]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def output_of(*command, **more):
    """Return what a program without buffers writes to stdout and stderr, in order."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", **more}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=400)
    assert done.returncode == 0, done.stdout
    return done.stdout.decode()


def test_lines_of_two_threads_stay_whole_without_a_buffer():
    lines = output_of(sys.executable, "-c", TWO_THREADS).splitlines()
    assert sorted(lines) == ["err"] * 5000 + ["out"] * 5000


def test_a_process_without_stderr_goes_on():
    program = (
        "import sys; from meshwright.base._text import print_line; "
        "print_line('lost', sys.stderr); print('on')"
    )
    assert output_of("sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, program) == "on\n"


@pytest.mark.parametrize("message", ["x", Table("x")], ids=["text", "table"])
def test_a_screen_whose_reader_is_gone_stops_nothing(message):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as screen:
        console = Console(None, file=screen)
        console.say(message)
        console.say(message)


def test_lines_to_a_closed_stream_are_dropped():
    with io.StringIO() as closed:
        pass
    print_line("lost", closed)


def test_another_failure_of_a_screen_is_an_error():
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115
    with pytest.raises(OSError, match="No space left"):
        print_line("lost", full)
    os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    full.close()
