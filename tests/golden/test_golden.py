"""A run that was recorded once, read, shown and continued by today's code. `make.py` says how it was made."""

import importlib
import json
import shutil
from pathlib import Path

import jax
import pytest

import meshwright as mw
from golden.reading import digest, leaves, reports
from meshwright.cli import main
from meshwright.observe._tensorboard import read_scalars

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "run.json").read_text())
LAST = reports(HERE / "run")["4"]
"""What the run reported at its last step."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A copy of the run in the current directory; its program can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE / "programs")
    return shutil.copytree(HERE / "run", tmp_path / "run")


def shown(capsys, *words):
    """Return what a command shows as JSON, if it is content."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def digests(state):
    """Return the digest of each array of a state by name, of typed keys those of their data."""
    named = mw.base._internal.named_leaves(state)
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    data = {name: jax.random.key_data(x) if is_key(x) else x for name, x in named.items()}
    return {name: digest(x) for name, x in sorted(data.items())}


def test_the_recorded_checkpoint_reads_as_it_was_to_the_bit():
    assert leaves(HERE / "run/checkpoints") == RECORDED["leaves"]


def test_the_recorded_checkpoint_is_restored_onto_another_mesh_to_the_bit(run):
    small = importlib.import_module("small")
    described = small.experiment("run", 4)
    layout = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), described.rules)
    target = mw.training.abstract_state(small.init, described.optimizer, layout)
    restored = mw.restore(mw.checkpoints.open_source(run / "checkpoints"), target)
    assert digests(restored) == RECORDED["leaves"]


def test_every_byte_of_the_recorded_checkpoints_is_intact(run, capsys):
    verified = shown(capsys, "verify", "run/checkpoints")
    steps = [Path(checkpoint["checkpoint"]).name for checkpoint in verified["checkpoints"]]
    assert steps == ["step_00000002", "step_00000004"]
    assert verified["intact"]


def test_the_recorded_checkpoint_is_inspected_with_its_scores(run, capsys):
    scores = {name: LAST[name] for name in ("test/accuracy", "test/loss")}
    assert shown(capsys, "inspect", "run/checkpoints")["extra"]["scores"] == scores


def test_the_recorded_run_is_listed_with_its_best_scores(run, capsys):
    (listed,) = shown(capsys, "runs", ".")["runs"]
    assert {"run": "run", "state": "finished", "step": 4, "max_steps": 4}.items() <= listed.items()
    assert listed["best"]["test/accuracy"] == {"step": 4, "value": LAST["test/accuracy"], "mode": "max"}


def test_the_recorded_event_files_hold_the_losses(run):
    losses = {int(step): report["loss"] for step, report in reports(run).items() if "loss" in report}
    assert read_scalars(run, "loss") == losses


def test_the_page_of_the_recorded_run_is_drawn_with_its_scores(run, capsys):
    newest = shown(capsys, "report", "run")
    assert LAST.items() <= newest["newest"].items()
    assert not newest["damage"]
    page = (run / "report.html").read_text()
    assert all(f"{LAST[name]:.4g}" in page for name in ("loss", "test/loss"))


def test_the_recorded_run_is_continued_as_the_code_that_wrote_it_would_have(run):
    before = reports(run)
    assert main(["resume", "run", "small:experiment", "steps=6"]) == 0
    after = reports(run)
    assert all(report.items() <= after[step].items() for step, report in before.items())
    assert after.keys() == RECORDED["reports"].keys()
    for step, report in RECORDED["reports"].items():
        losses = {name: report[name] for name in ("loss", "test/loss") if name in report}
        assert {name: after[step][name] for name in losses} == pytest.approx(losses, rel=1e-5)
