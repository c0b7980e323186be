"""A run that is cut off by time, or ended by its scores, decides as an undisturbed one does."""

import contextlib
import itertools
import time

import jax.numpy as jnp
import pytest

import meshwright as mw
from experiment.runs import EXAMPLES, experiment, measure
from meshwright.errors import Interrupted


def worse(params, batch):
    return {"e": jnp.ones(batch["x"].shape[0])}


def described(tmp_path, **more):
    evaluations = {"all": mw.Evaler(measure, EXAMPLES, when=5)}
    return experiment(tmp_path, **{"max_steps": 20, "evaluations": evaluations} | more)


def evaluated(tmp_path):
    reports = mw.metrics.read_jsonl(tmp_path / "metrics.jsonl")
    return [report["step"] for report in reports if any(name.startswith("all/") for name in report)]


def test_attempts_that_time_ends_evaluate_where_an_undisturbed_run_does(tmp_path):
    mw.run(described(tmp_path / "undisturbed"))
    slow = lambda step, values: time.sleep(0.2)
    for _ in itertools.count():
        with contextlib.suppress(Interrupted):
            mw.run(
                described(
                    tmp_path / "cut",
                    stop=mw.Stop(max_seconds=2.0),
                    logging=mw.Logging(every=1, trackers=(slow,)),
                )
            )
            break
    assert evaluated(tmp_path / "cut") == evaluated(tmp_path / "undisturbed") == [5, 10, 15, 20]


def test_time_is_looked_at_after_each_step(tmp_path):
    with pytest.raises(Interrupted, match="after step 1: max_seconds is over"):
        mw.run(described(tmp_path, stop=mw.Stop(max_seconds=1e-9), logging=mw.Logging(every=50)))
    assert mw.Checkpoints(tmp_path / "checkpoints").latest() == 1


def stopping(tmp_path, patience=2, **more):
    evaluations = {"all": mw.Evaler(worse, EXAMPLES, when=2)}
    return experiment(
        tmp_path,
        evaluations=evaluations,
        stop=mw.Stop(early=mw.early_stopping("all/e", "min", patience)),
        max_steps=30,
        **more,
    )


def test_a_run_that_its_scores_ended_stays_ended(tmp_path):
    first = mw.run(stopping(tmp_path))
    again = mw.run(stopping(tmp_path))
    assert (first.step, again.step) == (6, 6)
    assert dict(again.scores) == dict(first.scores)


def test_more_patience_lets_it_go_on(tmp_path):
    mw.run(stopping(tmp_path))
    assert mw.run(stopping(tmp_path, patience=4)).step == 10


def test_the_history_after_a_restart_holds_scores_and_nothing_else(tmp_path):
    seen = []

    def look(history):
        seen.append({step: dict(scores) for step, scores in history.items()})
        return False

    evaluations = {"all": mw.Evaler(worse, EXAMPLES, when=2)}
    mw.run(experiment(tmp_path, evaluations=evaluations, stop=mw.Stop(early=look), max_steps=4))
    mw.run(experiment(tmp_path, evaluations=evaluations, stop=mw.Stop(early=look), max_steps=8))
    assert seen[-1] == {step: {"all/e": 1.0} for step in (2, 4, 6, 8)}
