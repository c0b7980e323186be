"""What commit 5ef2e64 left, read, shown and gone on from by today's code. `make.py` says how it was made."""

import importlib
import json
import shutil
from pathlib import Path

import jax
import pytest

import meshwright as mw
from golden.reading import digest, leaves, reports
from meshwright import old_names
from meshwright.cli import main
from meshwright.events import read_scalars

KEPT = Path(__file__).parent / "5ef2e64"
RUNS = json.loads((KEPT / "runs.json").read_text())
both = pytest.mark.parametrize("name", RUNS)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with copies of the runs, which is the current directory; their programs can be imported."""
    for name in RUNS:
        shutil.copytree(KEPT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent / "programs")
    return tmp_path


def shown(capsys, *words):
    """Return what a command shows as JSON, if it is content."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def digests(state):
    """Return the digest of each array of a state by name, of typed keys those of their data."""
    named = mw.tree.named_leaves(state)
    data = {name: jax.random.key_data(x) if is_key(x) else x for name, x in named.items()}
    return {name: digest(x) for name, x in sorted(data.items())}


def is_key(x):
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


@both
def test_an_old_checkpoint_reads_as_it_was_to_the_bit(name):
    assert leaves(KEPT / name / "checkpoints") == RUNS[name]["leaves"]


@both
@pytest.mark.parametrize("mesh", ["data=2,fsdp=2,tensor=2", "fsdp=4,tensor=2"])
def test_an_old_checkpoint_is_restored_onto_any_mesh_to_the_bit(name, mesh, here):
    small = importlib.import_module("small")
    rules = small.experiment().rules
    target = mw.train.abstract_state(small.init, small.optimizer(), mw.Layout(mw.make_mesh(mesh), rules))
    restored = mw.restore(mw.open_source(here / name / "checkpoints"), target)
    assert digests(restored) == RUNS[name]["leaves"]


@both
def test_every_byte_of_old_checkpoints_is_intact(name, here, capsys):
    verified = shown(capsys, "verify", f"{name}/checkpoints")
    found = [Path(checkpoint["checkpoint"]).name for checkpoint in verified["checkpoints"]]
    assert found == ["step_00000008", "step_00000012"]
    assert verified["intact"]


@both
def test_an_old_checkpoint_is_inspected_with_the_scores_that_it_was_saved_with(name, here, capsys):
    inspected = shown(capsys, "inspect", f"{name}/checkpoints")
    last = reports(here / name)["12"]
    scores = {score: last[score] for score in last if score.startswith(("test/", "eval_"))}
    assert scores.items() <= inspected["extra"]["scores"].items()


def test_an_old_run_is_inspected_as_a_whole(here, capsys):
    assert main(["inspect", "small"]) == 0
    out = capsys.readouterr().out
    assert all(told in out for told in ("test/accuracy=0.7 ", "test/loss=0.7137", "params/hidden/kernel"))


def test_old_runs_are_listed_with_their_best_scores(here, capsys):
    found = {run["run"]: run for run in shown(capsys, "runs", ".")["runs"]}
    assert {"state": "finished", "step": 12, "max_steps": 12}.items() <= found["small"].items()
    assert found["small"]["best"]["test/accuracy"] == {"step": 8, "value": 0.725, "mode": "max"}
    assert found["trained"]["step"] == 12
    assert found["trained"]["best"]["eval/accuracy"]["value"] == 0.8


def test_the_event_files_of_an_old_run_hold_its_losses(here):
    told = {int(step): report["loss"] for step, report in reports(here / "small").items() if "loss" in report}
    assert read_scalars(here / "small", "loss") == told


@both
def test_the_page_of_an_old_run_is_drawn_anew_with_its_scores(name, here, capsys):
    (here / name / "report.html").unlink(missing_ok=True)
    told = shown(capsys, "report", name)
    last = reports(here / name)["12"]
    assert {score: told["newest"][old_names.score(score)] for score in last} == last
    page = (here / name / "report.html").read_text()
    assert all(f"{last[score]:.4g}" in page for score in last if score.endswith("loss"))
    assert not told["damage"]


@both
@pytest.mark.daily(1)
def test_an_old_run_goes_on_as_the_old_code_would_have_gone_on(name, here):
    before = reports(here / name)
    if name == "small":
        assert main(["resume", "small", "small:experiment", "steps=20"]) == 0
    else:
        importlib.import_module("trained").train("trained", 20)
    after, expected = reports(here / name), RUNS[name]["continued"]
    assert all(report.items() <= after[step].items() for step, report in before.items())
    assert after.keys() == expected.keys()
    for step in expected:
        # In evaluation a `Trainer` drew by the mesh: the noise in `eval/loss` is another now.
        losses = [score for score in expected[step] if score in ("loss", "test/loss", "eval/guessed")]
        assert [after[step][score] for score in losses] == pytest.approx(
            [expected[step][score] for score in losses], rel=1e-5
        )
