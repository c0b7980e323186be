"""Which checkpoints `fit` leaves, and the best of them."""

import jax
import numpy as np
import pytest

import meshwright as mw
from engine.trainer.runs import EXAMPLES, X, exact_loss, fit, reports, saved, trainer
from meshwright.checkpoints._choice import open_best
from meshwright.errors import CheckpointError, UsageError

WAVES = [3.0, 1.0, 2.0, 0.0, 5.0, 4.0]
"""Made-up scores of six epochs."""


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    """A run of which a metric is lowest after the fourth epoch, another highest after the second."""
    folder, calls = tmp_path_factory.mktemp("waves"), []

    def metric(preds):
        calls.append(len(preds))
        i = max(0, len(calls) - 2)  # the first call tries it out
        return {"low": WAVES[i], "high": float(i == 1), "nan": np.nan if i else 0.0}

    made = trainer(folder)
    predictor = mw.Predictor(made.deployer, model=made.model, predict=lambda model, batch: model(batch["x"]))
    evaluated = {"eval_examples": EXAMPLES, "eval_predictor": predictor, "eval_metric_fn": metric}
    best = {"low": "min", "high": "max", "nan": "min"}
    fit(made, epochs=6, save_when=5, best=best, keep_every_epochs=5, **evaluated)
    return made, folder


def test_the_best_by_each_score_the_periodic_and_the_newest_are_kept(waves):
    _, folder = waves
    assert saved(folder) == [3, 6, 12, 15, 18]


def test_the_best_parameters_are_those_of_their_step(waves):
    made, folder = waves
    for (score, mode), epoch in {("low", "min"): 4, ("high", "max"): 2}.items():
        loss = dict(reports(folder, "eval/loss"))[3 * epoch]
        assert exact_loss(made.best(score, mode).params) == pytest.approx(loss, rel=1e-5)


def test_the_deployer_loads_the_best_by_its_path(waves):
    made, folder = waves
    path = open_best(folder / "checkpoints", "eval/low", "min").path
    params = made.deployer.load_ckpt(path)[0]["params"]
    jax.tree.map(np.testing.assert_array_equal, params, made.best("low", "min").params)


def test_a_score_that_no_checkpoint_has_is_told(waves):
    with pytest.raises(CheckpointError, match=r"has a score 'eval/lo'\. Did you mean 'eval/low'\?"):
        waves[0].best("lo", "min")


def test_which_values_are_best_was_told_to_fit_and_which_score_if_there_is_one(waves):
    made, _ = waves
    for score, mode in {"low": "min", "high": "max"}.items():
        jax.tree.map(np.testing.assert_array_equal, made.best(score).params, made.best(score, mode).params)
    with pytest.raises(UsageError, match=r"by several scores, eval/low \(min\), eval/high \(max\)"):
        made.best()


def test_the_newest_alone_is_kept_if_nothing_else_is_asked(tmp_path):
    fit(trainer(tmp_path), epochs=3)
    assert saved(tmp_path) == [9]


def test_policies_say_when_to_evaluate_and_to_save_and_what_to_keep(tmp_path):
    keep = mw.checkpoints.multiples(4)
    options = {
        "eval_when": mw.engine.at(1, 5),
        "save_when": 2,
        "keep": keep,
        "logging": mw.Logging(every=100),
    }
    fit(trainer(tmp_path), epochs=3, eval_examples=EXAMPLES, **options)
    assert saved(tmp_path) == [0, 4, 8, 9]
    assert [step for step, _ in reports(tmp_path, "eval/loss")] == [1, 5, 9]
    assert [step for step, _ in reports(tmp_path)] == [2, 4, 6, 8, 9]


def test_a_policy_that_keeps_time_is_asked_once_a_step(tmp_path):
    asked = []
    fit(trainer(tmp_path), save_when=lambda step: bool(asked.append(step)), logging=mw.Logging(every=100))
    assert asked == [0, 1, 2, 3, 4, 5, 6]


def test_every_epoch_that_is_to_be_kept_is_saved_whatever_else_is(tmp_path):
    fit(trainer(tmp_path), epochs=4, save_when=5, keep_every_epochs=2)
    assert saved(tmp_path) == [6, 12]


def test_a_checkpoint_has_the_scores_of_its_step(tmp_path):
    made = trainer(tmp_path)
    scores = fit(made, eval_examples={"x": X, "y": np.zeros(50, np.float32)}, epochs=1)
    extra = mw.checkpoints.open_source(tmp_path / "checkpoints").extra
    assert extra["scores"] == {"eval/loss": scores["loss"], "epoch": 1.0}


@pytest.mark.parametrize("end", [{"epochs": 2}, {"max_steps": 6, "epochs": 9}])
@pytest.mark.daily(1)
def test_the_last_checkpoint_has_the_scores_of_the_end(tmp_path, end):
    made = trainer(tmp_path)
    scores = fit(made, eval_examples=EXAMPLES, eval_when=4, save_when=3, **end)
    found = mw.Checkpoints(tmp_path / "checkpoints").scores()
    assert (made.step, found["eval/loss"]) == (6, scores["loss"])


@pytest.mark.parametrize("score", ["loss", "eval/loss"])
def test_a_score_of_a_trainer_has_one_name_for_the_best_and_for_early_stopping(tmp_path, score):
    made = trainer(tmp_path)
    stop = mw.Stop(early=mw.engine.early_stopping(score, "min", patience=1, by=100.0))
    fit(made, epochs=6, eval_examples=EXAMPLES, best={score: "min"}, stop=stop)
    assert made.step == 6
    np.testing.assert_array_equal(made.best(score).params["w"], made.params["w"])


def test_a_score_of_another_evaluation_is_called_by_it(tmp_path):
    made = trainer()
    stop = mw.Stop(early=mw.engine.early_stopping("size/norm", "max", patience=1))
    fit(made, epochs=6, evaluations={"size": lambda params: {"norm": 1.0}}, stop=stop)
    assert made.step == 6
