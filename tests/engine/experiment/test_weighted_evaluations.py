"""Evaluations of texts that are padded, and scores that are computed from others."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.errors import UsageError

RNG = np.random.default_rng(0)
NUM_TOKENS = RNG.integers(1, 9, size=13)
TEXTS = {
    "x": RNG.normal(size=(13, 8)).astype(np.float32),
    "mask": (np.arange(8) < NUM_TOKENS[:, None]).astype(np.float32),
}


def of_tokens(params, batch):
    nll_BL = jnp.abs(batch["x"])
    return {"nll": mw.Mean((nll_BL * batch["mask"]).sum(-1), batch["mask"].sum(-1))}


def run(tmp_path, **evaluation):
    described = {"measure": of_tokens, "examples": TEXTS, "batch_size": 8, "when": 99} | evaluation
    return mw.run(experiment(tmp_path, evaluations={"texts": mw.Evaluation(**described)})).scores


def test_each_token_counts_once_whatever_the_length_of_its_text(tmp_path):
    exact = (np.abs(TEXTS["x"]) * TEXTS["mask"]).sum() / NUM_TOKENS.sum()
    assert run(tmp_path)["texts/nll"] == pytest.approx(exact, rel=1e-6)


def test_a_score_may_be_computed_from_those_over_all_examples(tmp_path):
    scores = run(tmp_path, metric_fn=lambda scores: {"perplexity": math.exp(scores["nll"])})
    assert scores["texts/perplexity"] == pytest.approx(math.exp(scores["texts/nll"]))


def test_checkpoints_may_be_kept_by_such_a_score(tmp_path):
    squared = lambda scores: {"perplexity": scores["nll"] ** 2}
    best = mw.checkpoints.best("texts/perplexity", "min")
    texts = mw.Evaluation(of_tokens, TEXTS, when=2, batch_size=8, metric_fn=squared)
    outcome = mw.run(experiment(tmp_path, evaluations={"texts": texts}, save=mw.Save(when=2, keep=best)))
    assert "texts/perplexity" in outcome.scores


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"metric_fn": lambda scores: 1.0},
            r"^evaluations.texts.metric_fn returned a value of type float; .*numbers by name",
        ),
        ({"metric_fn": lambda scores: {"nll": 1.0}}, r"^evaluations.texts.metric_fn returned 'nll', which"),
        ({"metric_fn": lambda preds: {}}, r"^Evaluation.metric_fn names `preds`: give Evaluation.predict"),
        ({"metric_fn": lambda score: {}}, r"asks for 'score', which is not available. Did you mean 'scores'"),
        (
            {"predict": lambda params, batch: batch},
            "^Evaluation.predict makes predictions for Evaluation.metric_fn",
        ),
        ({"measure": None}, "^Evaluation has no scores"),
        (
            {"measure": lambda params, batch: {"nll": mw.Mean.of(batch["x"])}},
            r"(?s)^evaluations.texts.measure: .*nll.total has shape \(\).*mw.Mean\(sums, weights\)",
        ),
        ({"measure": lambda params, batch: batch["x"]}, r"^evaluations.texts.measure: .*values by name"),
    ],
)
def test_what_gives_no_scores_is_refused_before_the_first_step(tmp_path, wrong, says):
    with pytest.raises(UsageError, match=says):
        run(tmp_path, **wrong)
    assert not (tmp_path / "metrics.jsonl").exists()
