"""What a trainer evaluates by: the loss, predictions, or what follows from the scores."""

import math

import numpy as np
import pytest

import meshwright as mw
from engine.trainer.runs import EXAMPLES, X, by_loss, fit, reports, trainer
from meshwright.errors import UsageError

UNLABELLED = {"x": X}


def predicting(made):
    return mw.Predictor(made.deployer, model=made.model, predict=lambda model, batch: model(batch["x"]))


def by_mean(made, measure=None):
    """An evaluation of examples without labels by the mean of the predictions."""
    return mw.Evaluation(measure, UNLABELLED, predict=predicting(made), metric_fn=mean_of)


def mean_of(preds):
    return {"mean": np.mean(preds)}


def perplexity(scores):
    return {"perplexity": math.exp(scores["loss"])}


def test_examples_on_which_the_loss_cannot_be_computed_are_evaluated_by_predictions():
    made = trainer()
    scores = fit(made, evaluations={"eval": by_mean(made)})
    mean = np.mean(predicting(made).predict(UNLABELLED, 2, made.params))
    assert scores == {"eval/mean": pytest.approx(mean)}


def test_so_they_are_outside_of_a_fit():
    made = trainer()
    assert made.evaluate(by_mean(made)).keys() == {"mean"}


def test_the_error_of_such_a_loss_says_what_to_write():
    made = trainer()
    with pytest.raises(KeyError, match="y") as raised:
        fit(made, evaluations={"eval": by_mean(made, "loss")})
    assert "write mw.Evaluation(None, examples, predict=" in raised.value.__notes__[0]
    assert made.step == 0


def test_a_score_may_follow_from_the_loss_without_predictions(tmp_path):
    made = trainer(tmp_path)
    scores = fit(made, evaluations=by_loss(metric_fn=perplexity))
    assert scores["eval/perplexity"] == math.exp(scores["eval/loss"])
    assert reports(tmp_path, "eval/perplexity")[-1] == (made.step, scores["eval/perplexity"])


def test_a_metric_function_may_name_all_that_there_is():
    def metric(examples, preds, scores):
        errors = (np.asarray(preds) - examples["y"]) ** 2
        return {"ratio": errors.mean() / scores["loss"]}

    made = trainer()
    by_ratio = mw.Evaluation("loss", EXAMPLES, predict=predicting(made), metric_fn=metric)
    assert made.evaluate(by_ratio)["ratio"] == pytest.approx(1, rel=1e-5)


def test_a_trainer_evaluates_by_a_measure_and_writes_its_outputs(tmp_path):
    def predict(params, batch):
        return {"y": batch["x"] @ params["w"] + params["b"]}

    def measure(params, batch):
        return {"error": abs(predict(params, batch)["y"] - batch["y"])}

    made = trainer(tmp_path)
    evaluation = mw.Evaluation(measure, EXAMPLES, outputs=predict)
    scores = fit(made, evaluations={"all": evaluation})
    errors = np.abs(np.asarray(predict(made.params, EXAMPLES)["y"]) - EXAMPLES["y"])
    assert scores == {"all/error": pytest.approx(np.mean(errors), rel=1e-5)}
    assert made.evaluate(evaluation) == {"error": pytest.approx(scores["all/error"])}
    assert len((tmp_path / "outputs/all/step_00000006.jsonl").read_text().splitlines()) == 50


def test_examples_that_are_collated_are_evaluated_by_a_measure_too():
    pairs = list(zip(EXAMPLES["x"], EXAMPLES["y"], strict=True))
    collate = lambda pairs: {"x": np.stack([x for x, _ in pairs]), "y": np.stack([y for _, y in pairs])}
    made = trainer(collate=collate)
    measure = lambda params, batch: {"y": batch["y"]}
    assert made.evaluate(mw.Evaluation(measure, pairs)) == {"y": pytest.approx(EXAMPLES["y"].mean(), 1e-5)}


def test_another_call_compiles_no_evaluation_by_the_loss_again():
    traced = []

    def loss(model, batch, train):
        traced.append(train)
        return ((model(batch["x"]) - batch["y"]) ** 2).mean()

    made = trainer(loss=loss)
    fit(made, evaluations=by_loss())
    first = traced.count(False)
    fit(made, evaluations=by_loss())
    assert traced.count(False) == first > 0


@pytest.mark.parametrize(
    ("measure", "options", "says"),
    [
        (None, {}, "Evaluation has no scores: give measure, or predict and metric_fn"),
        ("los", {}, "Evaluation.measure is 'los'"),
        ("loss", {"metric_fn": mean_of}, "metric_fn names `preds`: give Evaluation.predict"),
        (None, {"metric_fn": perplexity}, "asks for 'scores', which is not available"),
        ("loss", {"predict": True}, "Evaluation.predict makes predictions for Evaluation.metric_fn"),
        ("loss", {"predict": True, "metric_fn": perplexity}, "does not take 'preds'"),
    ],
)
def test_what_cannot_evaluate_is_told_when_it_is_made(measure, options, says):
    if "predict" in options:
        options = options | {"predict": predicting(trainer())}
    with pytest.raises(UsageError, match=f"(?s){says}"):
        mw.Evaluation(measure, EXAMPLES, **options)


def test_a_trainer_without_a_loss_cannot_evaluate_by_it():
    made = trainer(loss=None, train_step=lambda state, batch: (state, {}))
    with pytest.raises(UsageError, match=r'evaluations\.eval\.measure is "loss", but there is no loss'):
        fit(made, evaluations=by_loss())


def test_examples_are_not_an_evaluation():
    with pytest.raises(UsageError, match=r'takes an evaluation; found dict\.\n.*mw.Evaluation\("loss"'):
        trainer().evaluate(EXAMPLES)
