"""A run that goes back before a loss spike, killed at any moment, decides and computes the same."""

import json
import signal
from pathlib import Path

import pytest
from benchmarks.planted import spikes

from end_to_end.running import final_arrays, losses
from soak import cases, rng

pytestmark = pytest.mark.slow
PROGRAM = str(Path(spikes.__file__).parent)


def told(run):
    lines = (run / "spikes.jsonl").read_text().splitlines()
    return [{name: x for name, x in json.loads(line).items() if name != "time"} for line in lines]


@pytest.fixture(scope="module")
def planted(shell):
    (shell.folder / "spikes.py").write_text(Path(spikes.__file__).read_text())
    return lambda run, *more: ("train", "spikes.py:experiment", f"workdir={run}", "every=1", *more)


@pytest.fixture(scope="module")
def undisturbed(shell, planted):
    done = shell(*planted("undisturbed"))
    assert done.returncode == 0, done.stderr
    return shell.folder / "undisturbed"


def check(run, undisturbed):
    assert losses(run) == losses(undisturbed)
    assert final_arrays(run) == final_arrays(undisturbed)
    assert told(run) == told(undisturbed)


def test_a_run_that_is_killed_at_any_report_decides_and_computes_the_same(shell, planted, undisturbed):
    random = rng("spikes/killed")
    for number in range(cases(few=1, many=40)):
        run = shell.folder / f"killed-{number}"
        # Also between a spike and its rollback: 50 steps, 10 of them twice, are reported around the first.
        killed = shell(*planted(run.name, f"dies_at_report={random.randint(42, 75)}"))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        done = shell(*planted(run.name))
        assert done.returncode == 0, done.stderr
        check(run, undisturbed)
