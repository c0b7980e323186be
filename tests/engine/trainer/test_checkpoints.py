"""Which checkpoints `fit` leaves, and the best of them."""

import jax
import numpy as np
import pytest

import meshwright as mw
from engine.trainer.runs import X, by_loss, exact_loss, fit, reports, saved, trainer
from meshwright.checkpoints._choice import open_best
from meshwright.errors import CheckpointError, UsageError

WAVES = [3.0, 1.0, 2.0, 0.0, 5.0, 4.0]
"""Made-up scores of six epochs."""
MODES = {"low": "min", "high": "max", "nan": "min"}


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
    evaluated = {"evaluations": by_loss(predict=predictor, metric_fn=metric)}
    best = mw.checkpoints.best
    keep = mw.checkpoints.keep_any(
        *(best(f"eval/{name}", mode, without_metric="drop") for name, mode in MODES.items()),
        mw.checkpoints.multiples(5, of="epoch"),
    )
    fit(made, epochs=6, save=mw.Save(keep=keep), **evaluated)
    return made, folder


def test_the_best_by_each_score_the_periodic_and_the_newest_are_kept(waves):
    _, folder = waves
    assert saved(folder) == [3, 6, 12, 15, 18]


def test_the_best_parameters_are_those_of_their_step(waves):
    made, folder = waves
    for (score, mode), epoch in {("low", "min"): 4, ("high", "max"): 2}.items():
        loss = dict(reports(folder, "eval/loss"))[3 * epoch]
        assert exact_loss(made.best(f"eval/{score}", mode).params) == pytest.approx(loss, rel=1e-5)


def test_the_deployer_loads_the_best_by_its_path(waves):
    made, folder = waves
    path = open_best(folder / "checkpoints", "eval/low", "min").path
    params = made.deployer.load_ckpt(path)[0]["params"]
    jax.tree.map(np.testing.assert_array_equal, params, made.best("eval/low", "min").params)


def test_a_score_that_no_checkpoint_has_is_told(waves):
    with pytest.raises(CheckpointError, match=r"has a score 'eval/lo'\. Did you mean 'eval/low'\?"):
        waves[0].best("eval/lo", "min")


def test_which_values_are_best_was_told_to_fit_and_which_score_if_there_is_one(waves):
    made, _ = waves
    for score, mode in {"eval/low": "min", "eval/high": "max"}.items():
        jax.tree.map(np.testing.assert_array_equal, made.best(score).params, made.best(score, mode).params)
    with pytest.raises(UsageError, match=r"by several scores, eval/low \(min\), eval/high \(max\)"):
        made.best()


def test_the_newest_alone_is_kept_if_nothing_else_is_asked(tmp_path):
    fit(trainer(tmp_path), epochs=3)
    assert saved(tmp_path) == [9]


def test_policies_say_when_to_evaluate_and_to_save_and_what_to_keep(tmp_path):
    options = {
        "evaluations": by_loss(when=mw.engine.at(1, 5)),
        "save": mw.Save(when=2, keep=mw.checkpoints.multiples(4)),
        "logging": mw.Logging(every=100),
    }
    fit(trainer(tmp_path), epochs=3, **options)
    assert saved(tmp_path) == [0, 4, 8, 9]
    assert [step for step, _ in reports(tmp_path, "eval/loss")] == [1, 5, 9]
    assert [step for step, _ in reports(tmp_path)] == [2, 4, 6, 8, 9]


def test_a_policy_that_keeps_time_is_asked_once_a_step(tmp_path):
    asked = []
    fit(
        trainer(tmp_path),
        save=mw.Save(when=lambda step: bool(asked.append(step))),
        logging=mw.Logging(every=100),
    )
    assert asked == [0, 1, 2, 3, 4, 5, 6]


def test_every_epoch_that_is_to_be_kept_is_saved_whatever_else_is(tmp_path):
    when = lambda step, scores: step % 5 == 0 or "epoch" in scores
    keep = mw.checkpoints.multiples(2, of="epoch")
    fit(trainer(tmp_path), epochs=4, save=mw.Save(when=when, keep=keep))
    assert saved(tmp_path) == [6, 12]


def test_a_checkpoint_has_the_scores_of_its_step(tmp_path):
    made = trainer(tmp_path)
    scores = fit(made, evaluations=by_loss({"x": X, "y": np.zeros(50, np.float32)}), epochs=1)
    extra = mw.checkpoints.open_source(tmp_path / "checkpoints").extra
    assert extra["scores"] == {"eval/loss": scores["eval/loss"], "epoch": 1.0}


@pytest.mark.parametrize("end", [{"epochs": 2}, {"max_steps": 6, "epochs": 9}])
@pytest.mark.daily(1)
def test_the_last_checkpoint_has_the_scores_of_the_end(tmp_path, end):
    made = trainer(tmp_path)
    scores = fit(made, evaluations=by_loss(when=4), save=mw.Save(when=3), **end)
    found = mw.Checkpoints(tmp_path / "checkpoints").scores()
    assert (made.step, found["eval/loss"]) == (6, scores["eval/loss"])


def test_a_score_has_one_name_for_the_best_and_for_early_stopping(tmp_path):
    made = trainer(tmp_path)
    stop = mw.Stop(early=mw.engine.early_stopping("eval/loss", "min", patience=1, by=100.0))
    save = mw.Save(keep=mw.checkpoints.best("eval/loss", "min"))
    fit(made, epochs=6, evaluations=by_loss(), save=save, stop=stop)
    assert made.step == 6
    np.testing.assert_array_equal(made.best("eval/loss").params["w"], made.params["w"])


def test_a_function_of_the_parameters_may_end_a_fit():
    made = trainer()
    stop = mw.Stop(early=mw.engine.early_stopping("size/norm", "max", patience=1))
    size = mw.engine.EvaluationFunction(lambda params: {"norm": 1.0})
    fit(made, epochs=6, evaluations={"size": size}, stop=stop)
    assert made.step == 6


def test_checkpoints_may_lie_outside_of_the_workdir(tmp_path):
    made = trainer(tmp_path / "run")
    save = mw.Save(directory=str(tmp_path / "elsewhere"), keep=mw.checkpoints.best("eval/loss", "min"))
    fit(made, evaluations=by_loss(), save=save)
    assert not (tmp_path / "run/checkpoints").exists()
    assert float(made.best().params["b"]) == float(made.params["b"])
    again = trainer(tmp_path / "run")
    fit(again, evaluations=by_loss(), save=save)
    assert again.step == 6
