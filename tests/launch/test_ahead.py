"""Compiling ahead for one process fewer, with programs that only pretend to train and to compile."""

import os
import sys
from threading import Event

import pytest

from meshwright.launch._local import LocalSpawner, launch_local
from meshwright.launch._precompile import compiling_ahead

PROGRAM = """
import os, pathlib, sys, time
of = int(os.environ["JAX_NUM_PROCESSES"])
if os.environ.get("MESHWRIGHT_ONLY_COMPILE"):
    pathlib.Path(sys.argv[1] + ".pid").write_text(str(os.getpid()))
    with open(sys.argv[1], "a") as compiled:
        compiled.write(f"{os.environ['JAX_PROCESS_ID']} of {of} nice {os.nice(0)}\\n")
    exec(sys.argv[2])
    sys.exit()
if os.environ["JAX_PROCESS_ID"] == "0":
    pathlib.Path(os.environ["MESHWRIGHT_PROGRESS"] + ".ahead").touch()
compiled, end = pathlib.Path(sys.argv[1]), time.monotonic() + float(sys.argv[3])
while time.monotonic() < end and not (compiled.exists() and compiled.read_text().count("\\n") == of - 1):
    time.sleep(0.01)
time.sleep(0.3)
"""


@pytest.fixture
def launched(tmp_path):
    """Return what was compiled while a program ran in three processes."""

    def launch(compiles="pass", seconds=10, **options):
        compiled = tmp_path / "compiled"
        command = [sys.executable, "-c", PROGRAM, str(compiled), compiles, str(seconds)]
        assert launch_local(command, 3, restarts=1, **options) == 0
        return sorted(compiled.read_text().splitlines()) if compiled.exists() else []

    return launch


@pytest.fixture
def told(tmp_path):
    """Return what is told when a run asks for a program to be compiled for two processes."""

    def ask(compiles):
        said, is_told, progress = [], Event(), tmp_path / "progress"
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "compiled"), compiles, "0"]

        def place(number):
            return LocalSpawner(command, number, None, progress, "127.0.0.1:1", only_compiles=True)

        def say(text):
            said.append(text)
            is_told.set()

        with compiling_ahead(progress, place, 2, say):
            progress.with_name("progress.ahead").touch()
            assert is_told.wait(300)
        return said[0]

    return ask


def test_while_a_run_trains_the_step_is_compiled_for_one_process_fewer_at_the_lowest_priority(launched):
    assert launched(seconds=300, min_processes=1) == ["0 of 2 nice 19", "1 of 2 nice 19"]


def test_that_the_step_is_compiled_ahead_is_told(told):
    assert told("pass").startswith("compiled the step ahead for 2 processes, in ")


def test_why_a_start_with_fewer_would_fail_is_told(told):
    text = told("print('8 rows cannot be divided by 3'); sys.exit(2)")
    assert "the step could not be compiled ahead for 2 processes: process" in text
    assert "ended with exit code 2" in text
    assert "\n    8 rows cannot be divided by 3" in text


@pytest.mark.parametrize(
    "options", [{}, {"min_processes": 3}, {"min_processes": 1, "compile_ahead": False}], ids=str
)
@pytest.mark.daily(1)
def test_nothing_is_compiled_where_a_run_cannot_go_on_with_fewer_or_does_not_want_it(launched, options):
    assert launched(seconds=0.6, **options) == []


def test_what_still_compiles_ends_with_the_run(launched, tmp_path):
    launched("time.sleep(600)", seconds=300, min_processes=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "compiled.pid").read_text()), 0)
