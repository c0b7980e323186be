import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from end_to_end.running import Shell
from meshwright.observe._jsonl import read_jsonl


@pytest.fixture(scope="module")
def digits(shell):
    """The whole demo, as `make demo` runs it: killed half way and started again."""
    return shell("demo", "digits", "--kill", "workdir=digits")


def test_it_survives_its_kill_and_learns_the_digits(digits):
    assert digits.returncode == 0, digits.stderr
    assert "killed (SIGKILL" in digits.stderr
    # Killed after 350: that of 300 may have been in flight, that of 200 was complete before it began.
    assert int(re.search(r"continuing after step (\d+)", digits.stderr)[1]) in (200, 300)
    assert float(re.search(r"test/accuracy (\S+)", digits.stdout)[1]) >= 0.96


def test_its_log_shows_what_lies_where_and_its_screen_on_what(digits, shell):
    log = (shell.folder / "digits/logs/process-00000.log").read_text()
    row = next(line for line in log.splitlines() if line.startswith("params/hidden/kernel"))
    assert all(part in row for part in ("64 × 128", "float32", "fsdp, tensor", "8 KiB"))
    assert "params/hidden/kernel" not in digits.stderr
    assert "8 × cpu · mesh data 2 × fsdp 2 × tensor 2" in digits.stderr


def test_its_screen_shows_the_checks_and_the_progress(digits):
    assert len(re.findall("✓", digits.stderr)) >= 2 * 3
    assert re.search(
        r"step=450/900 loss=\S+ .*examples_per_second=\S+ input_wait=\S+ .*left=0:00:", digits.stderr
    )


@pytest.mark.slow
def test_the_commands_that_it_suggests_work_when_pasted(digits, shell):
    suggested = [line.strip() for line in digits.stdout.splitlines() if line.startswith("   ")]
    assert len(suggested) == 3
    inspect, train, other = suggested
    for command, shows in ((inspect, "params/out/kernel"), (f"{train} steps=5", "done: step 5")):
        pasted = subprocess.run(
            command,
            shell=True,
            cwd=shell.folder,
            env=shell.environ,
            text=True,
            capture_output=True,
            timeout=300,
        )
        assert pasted.returncode == 0, pasted.stderr
        assert shows in pasted.stdout
    assert shlex.split(other)[-2:] == ["demo", "text"]


def prose(shell, *settings):
    """Return what the text demo reports; the losses on two devices are those of eight."""
    done = shell("demo", "text", "workdir=text", "--fake-devices", "2", *settings)
    assert done.returncode == 0, done.stderr
    reports = read_jsonl(shell.folder / "text" / "metrics.jsonl")
    assert 5 < next(report["loss"] for report in reports if "loss" in report) < 6
    return reports


@pytest.mark.slow
def test_the_text_demo_learns_which_letters_there_are(shell):
    assert prose(shell, "steps=40", "layers=1", "length=64")[-1]["held_out/loss"] <= 3.2


@pytest.mark.long
def test_the_text_demo_learns_prose(shell, tmp_path):
    reports = prose(Shell(shell.python, tmp_path))
    assert reports[-1]["step"] == 150
    assert reports[-1]["held_out/loss"] <= 2.3


@pytest.mark.slow
def test_neither_tensorflow_nor_pytorch_is_ever_loaded(shell):
    script = (
        "import sys, meshwright.cli\n"
        "assert meshwright.cli.main(['demo', 'digits', 'steps=3', 'workdir=lean']) == 0\n"
        "assert not {'tensorflow', 'torch'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=shell.folder, env=shell.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_run_directory_holds_what_is_documented(uninterrupted):
    found = {
        path.relative_to(uninterrupted).as_posix()
        for path in Path(uninterrupted).rglob("*")
        if path.is_file()
    }
    fixed = {
        "experiment.txt",
        "experiment.json",
        "state.txt",
        "programs.json",
        "ledger.json",
        "environment.json",
        "outcome.json",
        "attempts/step_00000000.txt",
        "report.html",
        "metrics.jsonl",
        "logs/process-00000.log",
    }
    assert fixed <= found
    unnamed = re.compile(r"(?<=\.tfevents)\..*")  # named by the time
    assert {unnamed.sub("", name) for name in found - fixed} == {
        "events.out.tfevents",
        ".run.lock",
        "checkpoints/.lock",
        *(
            f"checkpoints/step_{step:08d}/{name}"
            for step in (100, 120)
            for name in ("manifest.json", "data-00000-of-00001.zarr.zip")
        ),
    }
