"""Preferences: the loss, and a reference that is computed once."""

import functools
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import InputError, UsageError
from meshwright.lm._models import decoder, hugging_face
from meshwright.lm._tuning._dpo import dpo, log_probabilities, with_reference
from meshwright.lm._tuning._experiment import adapted

CFG = hugging_face.config(Path(__file__).parents[2] / "lm" / "models" / "golden" / "llama")
RNG = np.random.default_rng(0)


def rows(first, last):
    question, answer = RNG.integers(0, 48, (16, 4)), RNG.integers(first, last, (16, 4))
    tokens = np.concatenate([question, answer], 1).astype(np.int32)
    weights = np.tile([0] * 4 + [1] * 4, (16, 1))
    return {"tokens": tokens, "segments": np.ones_like(tokens), "weights": weights}


PAIRS = {"chosen": rows(0, 24), "rejected": rows(24, 48)}


@pytest.fixture(scope="module")
def layout():
    return mw.Layout(mw.make_mesh("data=-1"))


def linear(params, given):
    return params["w"] * given["x"]


def test_the_loss_is_that_of_the_paper():
    rng = np.random.default_rng(1)
    y, z, ry, rz = rng.normal(size=(4, 6)).astype(np.float32)
    batch = {"chosen": {"x": y}, "rejected": {"x": z}, "reference": {"chosen": ry, "rejected": rz}}
    loss, metrics = dpo(linear, beta=0.3)({"w": 2.0}, batch)
    margin = 0.3 * ((2 * y - ry) - (2 * z - rz))
    np.testing.assert_allclose(loss, np.log1p(np.exp(-margin)).mean(), rtol=1e-6)
    np.testing.assert_allclose(
        [metrics["accuracy"], metrics["margin"]], [(margin > 0).mean(), margin.mean()], rtol=1e-6
    )


def test_the_reference_is_computed_once_and_kept(layout, tmp_path):
    calls, pairs = [], {"chosen": {"x": np.arange(10.0)}, "rejected": {"x": -np.arange(10.0)}}

    def counted(params, given):
        calls.append(1)
        return linear(params, given)

    found = [
        with_reference(pairs, counted, {"w": np.float32(w)}, layout, path=tmp_path / "r.json", batch_size=8)
        for w in (0.1, 0.1)
    ]
    assert len(calls) == 2  # of the chosen and the rejected, traced once
    for each in found:
        np.testing.assert_array_equal(
            each["reference"]["chosen"], np.float32(0.1) * np.arange(10, dtype=np.float32)
        )
        assert each["reference"]["rejected"].shape == (10,)
    with pytest.raises(UsageError, match=r"r.json has the log-probabilities of other parameters"):
        with_reference(pairs, counted, {"w": np.float32(2)}, layout, path=tmp_path / "r.json")
    others = {**pairs, "chosen": {"x": np.ones(10)}}
    with pytest.raises(UsageError, match=r"r.json has the log-probabilities of other examples"):
        with_reference(others, counted, {"w": np.float32(0.1)}, layout, path=tmp_path / "r.json")
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(InputError, match="has no log-probabilities of a reference"):
        with_reference(pairs, counted, {"w": np.float32(0.1)}, layout, path=tmp_path / "r.json")


@pytest.mark.slow
def test_an_adapter_learns_preferences_from_where_the_loss_is_that_of_a_coin(layout, tmp_path):
    params, of = decoder.init(CFG, jax.random.key(0)), log_probabilities(CFG)
    pairs = with_reference(PAIRS, of, params, layout, path=tmp_path / "r.json")
    whole = mw.Experiment(
        workdir=str(tmp_path / "run"),
        model=functools.partial(decoder.init, CFG),
        loss=dpo(of),
        optimizer=optax.adam(3e-3),
        input=mw.Input(pairs, batch_size=8),
        max_steps=30,
        init_state_builder=lambda target: {
            f"params/{n}": x for n, x in mw.base._internal.named_leaves(params).items()
        },
    )
    adapter = mw.lm.lora("layers/(q|v|up|down)", rank=4)
    first = adapter.loss(dpo(of))(adapter.beside(params, jax.random.key(1)), pairs, jax.random.key(2))[0]
    np.testing.assert_allclose(first, np.log(2), rtol=1e-4)
    state = mw.run(adapted(whole, adapter)).state
    loss, metrics = dpo(of)(adapter.merged(state.params), pairs)
    assert loss < 0.5
    assert metrics["accuracy"] > 0.9


def test_what_is_missing_is_named(layout, tmp_path):
    with pytest.raises(UsageError, match="the pairs lack rejected; they have chosen"):
        with_reference({"chosen": {}}, linear, {}, layout, path=tmp_path / "r.json")
    with pytest.raises(UsageError, match="the batch has chosen/x, but no reference"):
        dpo(linear)({}, {"chosen": {"x": np.ones(2)}})
    with pytest.raises(UsageError, match="beta is 0"):
        dpo(linear, beta=0)
