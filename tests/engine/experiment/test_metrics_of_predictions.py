"""Scores of an experiment that are no averages over examples: of all predictions together."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.errors import UsageError

X = np.random.default_rng(1).normal(size=(21, 4)).astype(np.float32)
EXAMPLES = {"x": X, "label": X[:, 0] > 0.3, "id": np.arange(21)}


def guess(params, batch):
    return {"positive": (batch["x"] @ params["w"]).sum(-1) > 0, "id": batch["id"]}


def f1(examples, preds):
    """No mean over examples has it: 2 TP / (2 TP + FP + FN)."""
    assert [pred["id"] for pred in preds] == examples["id"].tolist()  # all, in order, and no filler
    positive = np.array([pred["positive"] for pred in preds])
    return {"f1": 2 * (positive & examples["label"]).sum() / (positive.sum() + examples["label"].sum())}


def measure(params, batch):
    return {"error": (((batch["x"] @ params["w"]).sum(-1) > 0) != batch["label"])}


def evaluation(**more):
    described = {"measure": None, "when": 2, "batch_size": 8, "predict": guess, "metric_fn": f1} | more
    return mw.Evaluation(examples=described.pop("examples", EXAMPLES), **described)


def run(tmp_path, given=None, **more):
    return mw.run(experiment(tmp_path, evaluations={"held_out": given or evaluation()}, max_steps=4, **more))


def exact_f1(params):
    positive = (X @ np.asarray(params["w"])).sum(-1) > 0
    return 2 * (positive & EXAMPLES["label"]).sum() / (positive.sum() + EXAMPLES["label"].sum())


def test_a_metric_is_of_all_examples_and_all_predictions(tmp_path):
    outcome = run(tmp_path)
    assert outcome.scores == {"held_out/f1": pytest.approx(exact_f1(outcome.state.params))}


def test_a_metric_stands_beside_averages_and_is_given_them(tmp_path):
    def metric(examples, preds, scores):
        return f1(examples, preds) | {"accuracy": 1 - scores["error"]}

    scores = run(tmp_path, evaluation(measure=measure, metric_fn=metric)).scores
    assert list(scores) == ["held_out/error", "held_out/f1", "held_out/accuracy"]
    assert scores["held_out/accuracy"] == 1 - scores["held_out/error"]


def test_predictions_are_of_the_parameters_that_are_evaluated(tmp_path):
    averaged = optax.chain(optax.sgd(0.5), mw.training.keep_ema(0.9))
    outcome = run(tmp_path, optimizer=averaged)
    assert outcome.scores["held_out/f1"] == pytest.approx(exact_f1(mw.training.ema_params(outcome.state)))


def test_the_best_checkpoint_may_be_that_of_a_metric(tmp_path):
    kept = mw.Save(when=2, keep=mw.checkpoints.best("held_out/f1", "max"))
    run(tmp_path, save=kept)
    found = mw.Checkpoints(tmp_path / "checkpoints").scores_by_step()
    assert all("held_out/f1" in scores for scores in found.values())


def test_a_policy_by_a_metric_that_there_is_not_is_refused_before_the_first_step(tmp_path):
    with pytest.raises(UsageError, match=r"'held_ot/f1'.*Did you mean 'held_out/f1'"):
        run(tmp_path, save=mw.Save(keep=mw.checkpoints.best("held_ot/f1", "max")))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_metric_of_examples_that_are_read_one_by_one_is_given_a_list_of_them(tmp_path):
    rows = [{"x": x, "label": x[0] > 0.3, "id": i} for i, x in enumerate(X)]
    metric = lambda examples, preds: {"same": float([each["id"] for each in examples] == list(preds))}
    given = evaluation(
        examples=lambda: iter(rows), predict=lambda params, batch: batch["id"], metric_fn=metric
    )
    assert run(tmp_path, given).scores == {"held_out/same": 1.0}


def test_a_trainer_and_an_experiment_score_alike(tmp_path):
    outcome = run(tmp_path, evaluation(measure=measure))
    deployer = mw.Deployer(0, verbose=False)
    trainer = mw.Trainer(
        deployer,
        params=outcome.state.params,
        loss=lambda params, batch: mw.Mean.of(measure(params, batch)["error"]),
        optimizer=optax.sgd(0.1),
    )
    predictor = mw.Predictor(deployer, predict=guess)
    scores = trainer.evaluate(mw.Evaluation("loss", EXAMPLES, predict=predictor, metric_fn=f1))
    assert {"held_out/error": scores["loss"], "held_out/f1": scores["f1"]} == pytest.approx(outcome.scores)


def test_predictions_without_a_row_for_each_example_are_refused_before_the_first_step(tmp_path):
    with pytest.raises(UsageError, match=r"^evaluations.held_out.predict: .*row for each of the 8 examples"):
        run(tmp_path, evaluation(predict=lambda params, batch: jnp.mean(batch["x"])))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_an_error_of_the_metric_function_s_keeps_its_type_and_says_where_it_was(tmp_path):
    with pytest.raises(KeyError) as raised:
        run(tmp_path, evaluation(measure=measure, metric_fn=lambda preds, scores: {"f1": scores["loss"]}))
    assert raised.value.__notes__ == ["in evaluations.held_out.metric_fn, which was given the scores error"]
