"""A run that goes on where another, whose arrays are given, was."""

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.trainer.runs import arrays, fit, reports, saved, trainer
from meshwright.errors import UsageError

HALF = {"step": 6, "epoch_idx": 1}
"""Two epochs of three steps."""


@pytest.fixture(scope="module")
def half():
    """What a run of two epochs leaves, on the host."""
    made = trainer()
    fit(made, epochs=2)
    kept = {"params": made.params, "opt_state": made.state.opt_state}
    return jax.tree.map(np.asarray, kept)


def test_steps_epochs_and_randomness_go_on_as_if_nothing_had_happened(half):
    whole, rest = trainer(), trainer(**half, last_ckpt_info=HALF)
    fit(whole, epochs=4)
    fit(rest, epochs=4)
    assert arrays(rest) == arrays(whole)


def test_what_is_reported_and_saved_counts_on(half, tmp_path):
    made = trainer(tmp_path, **half, last_ckpt_info=HALF)
    for step in (6, 8):  # of the run that left the arrays, and went on for a while
        made.deployer.log_metrics({"loss": 0.5}, step)
    fit(made, epochs=3, logging=mw.Logging(every=1))
    assert [step for step, _ in reports(tmp_path)] == [6, 7, 8, 9]
    assert saved(tmp_path) == [9]


def test_a_workdir_that_holds_a_run_of_its_own_goes_on_with_that(half, tmp_path):
    fit(trainer(tmp_path, **half, last_ckpt_info=HALF), epochs=3)
    made = trainer(tmp_path, **half, last_ckpt_info=HALF)
    fit(made, epochs=4)
    assert made.step == 12


@pytest.mark.slow
def test_what_is_given_and_not_used_is_told_or_refused_where_it_is_of_a_later_step(half, tmp_path):
    fit(trainer(tmp_path, **half, last_ckpt_info=HALF), epochs=3)
    fit(trainer(tmp_path, **half, last_ckpt_info=HALF), epochs=4)
    [line] = [line for line in (tmp_path / "log.txt").read_text().splitlines() if "not used" in line]
    assert "params, opt_state, last_ckpt_info. The workdir's run is continued after step 9" in line
    later = trainer(tmp_path, **half, last_ckpt_info={"step": 30, "epoch_idx": 9})
    with pytest.raises(UsageError, match=r"is from step 30, .*at step 12\.\n  Give another workdir"):
        fit(later, epochs=12)


def test_nothing_is_left_to_train_where_all_epochs_were(half):
    made = trainer(**half, last_ckpt_info=HALF)
    fit(made, epochs=2)
    assert made.step == 6


def test_a_step_without_parameters_is_refused():
    with pytest.raises(UsageError, match="last_ckpt_info is given without params: give params, too"):
        trainer(last_ckpt_info=HALF)


def test_a_checkpoint_by_name_is_gone_on_with(tmp_path, half):
    deployer = mw.Deployer(0, verbose=False, workdir=tmp_path)
    deployer.save_ckpt("last", **half, **HALF)
    ckpt, info = deployer.load_last_ckpt(optimizer=optax.adam(0.1))
    made = trainer(given=mw.Deployer(0, verbose=False), **ckpt, last_ckpt_info=info)
    fit(made, epochs=4)
    assert made.step == 12


def test_a_run_says_from_which_given_arrays_it_began(half, tmp_path):
    fit(trainer(tmp_path, **half, last_ckpt_info=HALF), epochs=3)
    assert (
        "↳ begins from the given params and opt_state, after step 6\n" in (tmp_path / "log.txt").read_text()
    )
    assert (tmp_path / "began_from.txt").read_text() == "the given params and opt_state, after step 6\n"


def test_a_run_that_goes_on_or_makes_its_own_arrays_began_from_none_that_were_given(half, tmp_path):
    fit(trainer(tmp_path / "own"), epochs=1)
    fit(trainer(tmp_path / "on", params=half["params"]), epochs=1)
    (tmp_path / "on/log.txt").unlink()
    fit(trainer(tmp_path / "on", params=half["params"]), epochs=2)
    assert all("begins from" not in (tmp_path / name / "log.txt").read_text() for name in ("own", "on"))
    assert (tmp_path / "on/began_from.txt").read_text() == "the given params\n"
