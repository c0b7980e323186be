"""Whole runs on the axes `sequence` and `pipeline`: evaluations, and going on with other axes."""

import functools

import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.lm._models import decoder

CFG = decoder.Config(vocabulary=32, model=16, layers=4, heads=2, feed_forward=32)
RANDOM = np.random.default_rng(0)
ROWS = {
    "tokens": RANDOM.integers(1, 32, (40, 33)).astype(np.int32),
    "segments": np.sort(RANDOM.integers(1, 4, (40, 33)).astype(np.int32), axis=1),
}


def experiment(workdir, mesh, max_steps=6, **settings):
    def measure(params, batch):
        return {"loss": decoder.losses(CFG, params, batch["tokens"], batch["segments"]).mean(-1)}

    def argmax(params, batch):
        return decoder.logits(CFG, params, batch["tokens"][:, 1:]).argmax(-1)

    def agreed(params, batch):
        return {"agreed": (argmax(params, batch) == batch["tokens"][:, 1:]).mean(-1)}

    evaluations = {
        "rows": mw.Evaluation(measure, ROWS, when=3, batch_size=16),  # the last batch has 8 rows
        "few": mw.Evaluation(agreed, {name: x[:9] for name, x in ROWS.items()}, when=3, batch_size=8),
    }
    return mw.Experiment(
        workdir=str(workdir), mesh=mesh, rules=decoder.RULES, model=functools.partial(decoder.init, CFG),
        loss=functools.partial(decoder.loss, CFG), optimizer=optax.adam(1e-2), max_steps=max_steps,
        input=mw.Input(ROWS, batch_size=16), evaluations=evaluations, **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The scores of six steps without these axes, with the microbatches that a pipeline has."""
    return mw.run(experiment(tmp_path_factory.mktemp("data"), "data=2,fsdp=4", microbatches=2)).scores


def check(outcome, expected):
    for name in ("rows/loss", "few/agreed"):
        assert outcome.scores[name] == pytest.approx(expected[name], rel=1e-5)


@pytest.mark.slow
def test_two_evaluations_of_split_rows_in_a_run_are_those_of_whole_rows(tmp_path, expected):
    check(mw.run(experiment(tmp_path, "data=2,sequence=4", microbatches=2)), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", [pytest.param("pipeline=2,fsdp=4", marks=pytest.mark.long), "pipeline=2,data=2,sequence=2"]
)
def test_a_run_with_split_rows_goes_on_as_a_pipeline(tmp_path, expected, mesh):
    mw.run(experiment(tmp_path, "fsdp=2,sequence=4", max_steps=3, microbatches=2))
    check(mw.run(experiment(tmp_path, mesh, microbatches=2)), expected)
