"""Evaluations by any function of the parameters, and texts on a trainer's page."""

import dataclasses
import functools
import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.errors import UsageError
from meshwright.lm._models import decoder
from meshwright.lm._models._with_cache import with_cache

CFG = decoder.Config(vocabulary=256, model=16, layers=1, heads=2, feed_forward=16)
ROW = np.frombuffer(b"Once upon a time there was a mesh.", np.uint8).astype(np.int32)


def norm(params):
    return {"norm": float(optax.tree.norm(params))}


def asked(directory, function=norm, **more):
    return dataclasses.replace(
        experiment(directory, max_steps=3, **more),
        evaluations={"size": mw.engine.EvaluationFunction(function, when=2)},
    )


@pytest.mark.slow
def test_a_function_of_the_parameters_is_evaluated_when_due_and_at_the_end(tmp_path):
    outcome = mw.run(asked(tmp_path))
    reports = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    found = {report["step"]: report["size/norm"] for report in reports if "size/norm" in report}
    assert [*found] == [2, 3]
    assert found[3] == outcome.scores["size/norm"] == norm(outcome.state.params)["norm"]
    assert mw.evaluate(asked(tmp_path)) == {"size/norm": found[3]}


@pytest.mark.parametrize(
    ("function", "said"),
    [(lambda params: 3.0, "returned a value of type float"), (lambda params: {"a": "b"}, "numbers by name")],
)
def test_a_function_that_returns_no_numbers_by_name_is_named_before_the_first_step(tmp_path, function, said):
    with pytest.raises(UsageError, match=rf"evaluations.size.function.*{said}"):
        mw.run(asked(tmp_path, function))
    assert not (tmp_path / "metrics.jsonl").exists() or not (tmp_path / "metrics.jsonl").read_text()


def trainer(workdir):
    return mw.Trainer(
        mw.Deployer(seed=0, workdir=workdir, verbose=False),
        model=(functools.partial(decoder.init, CFG), functools.partial(decoder.logits, CFG)),
        loss=lambda params, batch: decoder.loss(CFG, params, batch),
        optimizer=optax.adam(2e-2),
        compute_dtype="bfloat16",
    )


def test_a_trainer_refuses_names_and_values_that_no_evaluation_can_have():
    one = mw.Trainer(
        mw.Deployer(seed=0, verbose=False),
        params={"w": jnp.zeros(())},
        loss=lambda params, batch: ((params["w"] - batch["y"]) ** 2).mean(),
        optimizer=optax.sgd(0.5),
    )
    examples = {"y": np.ones(8, np.float32)}
    by_norm = mw.engine.EvaluationFunction(norm)
    for given, said in (
        ({"evaluations": {"a/b": by_norm}}, "'a/b' cannot be a folder's name"),
        ({"evaluations": {"size": 3}}, "must be Evaluation or EvaluationFunction"),
        ({"samples": "Once"}, "takes mw.engine.Samples or mw.lm.Generation; found str"),
    ):
        with pytest.raises(UsageError, match=said):
            one.fit(examples, batch_size=8, epochs=1, **given)


@pytest.mark.slow
def test_a_trainer_scores_and_writes_texts_on_its_page_while_it_trains(tmp_path):
    model = with_cache(CFG)

    def likelihood(params):
        [row] = mw.lm.score(model, params, [ROW])
        return {"per_token": row.log_likelihood / len(row.log_probs)}

    examples = {"tokens": np.tile(ROW, (16, 1))}
    generation = mw.lm.Generation(
        model, mw.lm.Bytes(), prompts=("Once",), decoding=mw.lm.Decoding(max_new_tokens=8), when=20
    )
    known = mw.engine.EvaluationFunction(likelihood, when=30)
    given = {"batch_size": 8, "max_steps": 60, "evaluations": {"known": known}, "samples": generation}
    scores = trainer(tmp_path).fit(examples, epochs=40, **given)
    assert scores.keys() == {"known/per_token", "samples/tokens"}
    assert scores["known/per_token"] > -1
    files = sorted((tmp_path / "outputs/samples").iterdir())
    assert [file.stem for file in files] == ["step_00000020", "step_00000040", "step_00000060"]
    assert json.loads(files[-1].read_text()) == {"prompt": "Once", "text": " upon a ", "tokens": 8}
    assert " upon a " in (tmp_path / "report.html").read_text()
    again = trainer(tmp_path).fit(examples, epochs=40, **given)
    assert again == scores


def test_prompts_with_tokens_of_another_model_end_a_run_before_it_trains(tmp_path):
    generation = mw.lm.Generation(with_cache(CFG), prompts=("1 5", "1 5000"), when=1000)
    given = {"batch_size": 8, "max_steps": 2, "samples": generation}
    with pytest.raises(UsageError, match="prompt 1 has the token 5000, but the model has"):
        trainer(tmp_path).fit({"tokens": np.tile(ROW, (16, 1))}, epochs=1, **given)
    assert not (tmp_path / "metrics.jsonl").exists() or not (tmp_path / "metrics.jsonl").read_text()
