"""What a trainer evaluates by: the loss, predictions, or what follows from the scores."""

import math

import numpy as np
import pytest

import meshwright as mw
from engine.trainer.runs import EXAMPLES, X, fit, reports, trainer
from meshwright.errors import UsageError

UNLABELLED = {"x": X}


def predicting(made):
    return mw.Predictor(made.deployer, model=made.model, predict=lambda model, batch: model(batch["x"]))


def mean_of(preds):
    return {"mean": np.mean(preds)}


def perplexity(scores):
    return {"perplexity": math.exp(scores["loss"])}


def test_examples_on_which_the_loss_cannot_be_computed_are_evaluated_by_predictions():
    made = trainer()
    by = {"eval_predictor": predicting(made), "eval_metric_fn": mean_of}
    scores = fit(made, eval_examples=UNLABELLED, eval_loss=False, **by)
    assert scores == {"mean": pytest.approx(np.mean(predicting(made).predict(UNLABELLED, 2, made.params)))}


def test_so_they_are_outside_of_a_fit():
    made = trainer()
    by = {"predictor": predicting(made), "metric_fn": mean_of}
    assert made.evaluate(UNLABELLED, batch_size=16, loss=False, **by).keys() == {"mean"}


def test_the_error_of_such_a_loss_says_what_to_write():
    made = trainer()
    by = {"eval_predictor": predicting(made), "eval_metric_fn": mean_of}
    with pytest.raises(KeyError, match="y") as raised:
        fit(made, eval_examples=UNLABELLED, **by)
    assert "eval_loss=False" in raised.value.__notes__[0]
    assert made.step == 0


def test_a_score_may_follow_from_the_loss_without_predictions(tmp_path):
    made = trainer(tmp_path)
    scores = fit(made, eval_examples=EXAMPLES, eval_metric_fn=perplexity, best={"perplexity": "min"})
    assert scores["perplexity"] == math.exp(scores["loss"])
    assert reports(tmp_path, "eval/perplexity")[-1] == (made.step, scores["perplexity"])


def test_a_metric_function_may_name_all_that_there_is():
    def metric(examples, preds, scores):
        errors = (np.asarray(preds) - examples["y"]) ** 2
        return {"ratio": errors.mean() / scores["loss"]}

    made = trainer()
    by = {"predictor": predicting(made), "metric_fn": metric}
    assert made.evaluate(EXAMPLES, batch_size=16, **by)["ratio"] == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"eval_loss": False}, "give eval_predictor and eval_metric_fn, or leave out eval_loss=False"),
        ({"eval_loss": False, "eval_examples": None}, "eval_examples and eval_loss=False go together"),
        ({"eval_metric_fn": mean_of}, "eval_metric_fn names `preds`: give eval_predictor"),
        ({"eval_metric_fn": perplexity, "eval_loss": False}, "asks for 'scores', which is not available"),
        ({"eval_predictor": ...}, "eval_predictor makes predictions for eval_metric_fn"),
        ({"eval_predictor": ..., "eval_metric_fn": perplexity}, "does not take 'preds'"),
    ],
)
def test_what_cannot_evaluate_is_told_before_the_first_step(options, says):
    made = trainer()
    if "eval_predictor" in options:
        options = options | {"eval_predictor": predicting(made)}
    with pytest.raises(UsageError, match=f"(?s){says}"):
        fit(made, **{"eval_examples": EXAMPLES} | options)
    assert made.step == 0


def test_a_trainer_without_a_loss_is_told_that_nothing_evaluates():
    made = trainer(loss=None, train_step=lambda state, batch: (state, {}))
    with pytest.raises(UsageError, match=r"no function to score them: .* or give Trainer a loss"):
        fit(made, eval_examples=EXAMPLES)
