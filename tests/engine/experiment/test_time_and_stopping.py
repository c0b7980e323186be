"""A run that is cut off by time, or ended by its scores, decides as an undisturbed one does."""

import contextlib
import itertools
import signal
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment, measure
from meshwright.errors import Interrupted, UsageError


def worse(params, batch):
    return {"e": jnp.ones(batch["x"].shape[0])}


def described(tmp_path, **more):
    evaluations = {"all": mw.Evaluation(measure, EXAMPLES, when=5)}
    return experiment(tmp_path, **{"max_steps": 20, "evaluations": evaluations} | more)


def evaluated(tmp_path):
    reports = mw.observe.read_jsonl(tmp_path / "metrics.jsonl")
    return [report["step"] for report in reports if any(name.startswith("all/") for name in report)]


@pytest.mark.slow
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
    evaluations = {"all": mw.Evaluation(worse, EXAMPLES, when=2)}
    return experiment(
        tmp_path,
        evaluations=evaluations,
        stop=mw.Stop(early=mw.engine.early_stopping("all/e", "min", patience)),
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

    evaluations = {"all": mw.Evaluation(worse, EXAMPLES, when=2)}
    mw.run(experiment(tmp_path, evaluations=evaluations, stop=mw.Stop(early=look), max_steps=4))
    mw.run(experiment(tmp_path, evaluations=evaluations, stop=mw.Stop(early=look), max_steps=8))
    assert seen[-1] == {step: {"all/e": 1.0} for step in (2, 4, 6, 8)}


def in_a_job_that_ends(monkeypatch, seconds):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time() + seconds)))


def test_a_run_saves_before_the_scheduler_ends_its_job_and_says_so_at_the_start(
    tmp_path, monkeypatch, capsys
):
    in_a_job_that_ends(monkeypatch, 4000)
    with pytest.raises(Interrupted, match="after step 1: SLURM ends the job in 4200 s") as ended:
        mw.run(described(tmp_path, stop=mw.Stop(job_margin_seconds=4200.0)))
    assert ended.value.exit_code == 75
    said = capsys.readouterr().err
    assert "SLURM ends this job in 1:0" in said
    assert "the run saves and ends 4200 s before that (job_margin_seconds)" in said
    assert mw.Checkpoints(tmp_path / "checkpoints").latest() == 1


@pytest.mark.parametrize(("margin", "seconds"), [(None, 1), (60.0, 4000), (60.0, -5)])
def test_without_a_margin_or_long_before_or_after_that_time_it_goes_on(
    tmp_path, monkeypatch, capsys, margin, seconds
):
    in_a_job_that_ends(monkeypatch, seconds)
    assert mw.run(described(tmp_path, stop=mw.Stop(job_margin_seconds=margin))).step == 20
    assert ("SLURM" in capsys.readouterr().err) == (margin is not None)


def test_the_variable_of_the_scheduler_must_be_a_number(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "soon")
    with pytest.raises(UsageError, match="SLURM_JOB_END_TIME='soon' should be a whole number"):
        mw.run(described(tmp_path))


def test_time_counts_from_when_the_run_was_asked_for(tmp_path):
    with pytest.raises(Interrupted, match="max_seconds is over"):
        mw.run(described(tmp_path, stop=mw.Stop(max_seconds=100.0)), started=time.monotonic() - 100)


@pytest.mark.slow
def test_an_evaluation_that_time_cuts_off_is_made_when_the_run_goes_on(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("meshwright.engine._stopping.time", SimpleNamespace(monotonic=lambda: now[0]))

    def at_5(step):
        now[0] += 100 * (step == 5)
        return step == 5

    given = {"save": mw.Save(when=100), "max_steps": 6}
    evaluations = {"all": mw.Evaluation(measure, EXAMPLES, when=at_5, batch_size=8, at_end=False)}
    with pytest.raises(Interrupted, match="after step 5"):
        mw.run(
            described(tmp_path, evaluations=evaluations, stop=mw.Stop(max_seconds=100.0), **given),
            started=0.0,
        )
    assert (evaluated(tmp_path), mw.Checkpoints(tmp_path / "checkpoints").latest()) == ([], 5)
    mw.run(described(tmp_path, evaluations=evaluations, **given))
    assert evaluated(tmp_path) == [5]
    assert mw.Checkpoints(tmp_path / "checkpoints").scores_by_step()[5].keys() == {"all/loss"}


def test_the_last_evaluation_that_is_cut_off_is_made_when_the_run_is_called_again(tmp_path):
    def measured(params, batch):
        jax.debug.callback(lambda: signal.raise_signal(signal.SIGTERM) if told else None)
        return measure(params, batch)

    told = [True]
    evaluations = {"all": mw.Evaluation(measured, EXAMPLES, when=100, batch_size=8)}
    with pytest.raises(Interrupted, match="after step 20"):
        mw.run(described(tmp_path, evaluations=evaluations))
    assert evaluated(tmp_path) == []
    told.clear()
    outcome = mw.run(described(tmp_path, evaluations=evaluations))
    assert (outcome.step, evaluated(tmp_path)) == (20, [20])
    assert outcome.scores.keys() == {"all/loss"}
    saved = mw.Checkpoints(tmp_path / "checkpoints").scores_by_step()
    assert saved[20] == outcome.scores


def test_a_run_can_be_stopped_until_its_last_save_begins(tmp_path, monkeypatch):
    stops, saves, signals = [], [], mw.processes._internal.Signals()
    monkeypatch.setattr(mw.processes._internal, "stop_signals", lambda: contextlib.nullcontext(signals))
    monkeypatch.setattr(signals, "stop", lambda step: stops.append(signals.is_over))
    save = mw.Checkpoints.save
    monkeypatch.setattr(
        mw.Checkpoints, "save", lambda *what, **how: saves.append(signals.is_over) or save(*what, **how)
    )
    mw.run(described(tmp_path))
    assert stops
    assert not any(stops)
    assert saves[-1]


def test_a_save_at_the_step_where_scores_end_a_run_has_the_scores_of_the_end(tmp_path):
    at_end = mw.Evaluation(measure, EXAMPLES, when=100)
    evaluations = {"all": mw.Evaluation(worse, EXAMPLES, when=2), "last": at_end}
    early = mw.engine.early_stopping("all/e", "min", 2)
    outcome = mw.run(
        experiment(tmp_path, evaluations=evaluations, stop=mw.Stop(early=early), save=mw.Save(when=2))
    )
    assert outcome.step == 6
    assert mw.Checkpoints(tmp_path / "checkpoints").scores() == outcome.scores
    assert outcome.scores.keys() == {"all/e", "last/loss"}


def test_a_save_where_the_data_end_has_the_scores_of_the_end(tmp_path):
    given = mw.Input(EXAMPLES, batch_size=16, epochs=2)
    evaluations = {"all": mw.Evaluation(measure, EXAMPLES, when=100)}
    outcome = mw.run(
        experiment(tmp_path, input=given, evaluations=evaluations, save=mw.Save(when=4), max_steps=99)
    )
    assert outcome.step == 8
    assert mw.Checkpoints(tmp_path / "checkpoints").scores() == outcome.scores != {}
