"""Commands whose terminal has no Unicode, and those that have no terminal."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.cli import main

TESTS = Path(__file__).parents[1]
TARGET = "engine.experiment.test_addresses:described"
IN_ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
MADE = [TARGET, "workdir=é"]
WORDS = {"train": MADE, "show": MADE, "hlo": [*MADE, "--to", "h"], "doctor": []}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    mw.run(experiment(run, max_steps=2))
    return run


@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_what_ascii_lacks_is_escaped_on_a_terminal_that_has_no_more(run, monkeypatch, command):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(sys, "argv", ["meshwright", command, *([str(run)] if command == "inspect" else [])])
    assert main() == 0
    assert rb"\xd7" in written.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "inspect", "report", "runs", "doctor", "show", "hlo"])
def test_every_command_answers_in_ascii(run, tmp_path, command):
    environ = {**os.environ, **IN_ASCII, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])}
    words = [sys.executable, "-m", "meshwright", command, *WORDS.get(command, [str(run)])]
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, timeout=400)
    assert done.returncode == 0, done.stderr.decode()


def test_a_process_without_streams_opens_no_file_by_their_numbers(tmp_path):
    program = (
        "import os; from meshwright.cli._process import open_streams, show; open_streams(); show('lost')\n"
        "with open('made', 'w') as file: file.write(str(file.fileno()))"
    )
    words = ["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    subprocess.run(words, cwd=tmp_path, check=True)
    assert int((tmp_path / "made").read_text()) > 2


def test_a_run_without_streams_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    assert mw.run(experiment(tmp_path, max_steps=1)).step == 1
