import dataclasses
import functools
import sys
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.core import FrozenDict

import meshwright as mw
from engine.adapters import models
from meshwright.engine._adapters._functional import functional
from meshwright.engine._adapters._library import in_evaluation
from meshwright.errors import UsageError
from meshwright.training._state import Variables

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
MLPS = {
    "nnx": functional(models.NnxMlp),
    "linen": functional(models.LinenMlp(), models.INPUTS),
    "equinox": functional(models.EquinoxMlp),
    "pair": functional((models.init, models.apply)),
}
NORMS = {
    "nnx": functional(models.NnxNorm),
    "linen": functional(models.LinenNorm(), models.INPUTS),
    "equinox": functional(models.EquinoxNorm),
}


@functools.cache
def first(library):
    """The parameters and the state that the model with normalisation starts with."""
    return NORMS[library].init(KEY)


def batched(library, model_state, key, train):
    """What the model with normalisation makes of X, and its state. Equinox's takes one example."""
    call = functools.partial(
        NORMS[library].apply, first(library).params, model_state=model_state, key=key, train=train
    )
    if library == "equinox":
        call = jax.vmap(call, axis_name="batch", out_axes=(0, None))
    return jax.jit(call)(X)


def close(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: np.allclose(x, y, atol=1e-5), a, b))


@pytest.mark.parametrize("library", MLPS)
def test_one_model_has_the_same_plain_tree_and_outputs_in_all_libraries(library):
    params = models.init(jax.random.key(7))
    model = MLPS[library]
    made = jax.eval_shape(model.init, KEY)
    assert jax.tree.structure(made) == jax.tree.structure(params)
    assert mw.parallel.leaf_names(made) == ["hidden/bias", "hidden/kernel", "out/bias", "out/kernel"]
    assert close(model.apply(params, X), models.apply(params, X))


def test_a_model_of_a_library_trains():
    model, layout = MLPS["nnx"], mw.Layout(mw.make_mesh("data=8"))

    def loss(params, batch, key):
        return (model.apply(params, batch["x"], key=key, train=True) ** 2).mean()

    tx = optax.sgd(0.1)
    state, step = mw.training.init_state(model.init, tx, 0, layout), mw.make_step(loss, tx, layout)
    losses = []
    for _ in range(5):
        state, metrics = step(state, {"x": np.ones((8, 4), np.float32)})
        losses.append(float(metrics["loss"].value))
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    "make",
    [
        lambda width: functional(functools.partial(models.NnxMlp, width)),
        lambda width: functional(lambda rngs: models.NnxMlp(width, rngs=rngs)),
        lambda width: functional(models.LinenMlp(width), models.INPUTS),
        lambda width: functional(functools.partial(models.EquinoxMlp, width)),
        lambda width: functional((functools.partial(models.init, width=width), models.apply)),
    ],
)
def test_the_structure_of_a_model_larger_than_any_memory_is_known(make):
    params = jax.eval_shape(make(2**40).init, KEY)
    assert params["hidden"]["kernel"].shape == (4, 2**40)


@pytest.mark.parametrize("library", NORMS)
def test_statistics_move_in_training_and_stay_in_evaluation(library):
    state = first(library).model_state
    _, trained = batched(library, state, KEY, train=True)
    _, evaluated = batched(library, state, None, train=False)
    assert not close(trained, state)
    assert close(evaluated, state)


def test_statistics_of_nnx_and_linen_have_the_same_names_and_values():
    states = [batched(name, first(name).model_state, KEY, train=True)[1] for name in ("nnx", "linen")]
    assert [mw.parallel.leaf_names(state) for state in states] == [["norm/mean", "norm/var"]] * 2
    np.testing.assert_allclose(states[0]["norm"]["mean"], 0.1 * X.mean(0), rtol=1e-4)
    assert close(*states)


@pytest.mark.parametrize("library", NORMS)
def test_evaluation_normalises_by_the_statistics_given(library):
    state = first(library).model_state
    _, moved = batched(library, state, KEY, train=True)
    before, after = (batched(library, given, None, train=False)[0] for given in (state, moved))
    assert not close(before, after)


@pytest.mark.parametrize("library", NORMS)
@pytest.mark.daily(1)
def test_dropout_follows_from_the_key(library):
    state = first(library).model_state
    one, again, other = (batched(library, state, jax.random.key(i), train=True)[0] for i in (1, 1, 2))
    assert (one == 0).any()
    assert (one == again).all()
    assert ((one == 0) != (other == 0)).any()
    assert not (batched(library, state, None, train=False)[0] == 0).any()


@pytest.mark.parametrize("library", NORMS)
def test_a_state_that_is_needed_and_not_given_is_asked_for(library):
    with pytest.raises(UsageError, match=r"model_state=variables\.model_state"):
        NORMS[library].apply(first(library).params, X)


@pytest.mark.parametrize("library", ["nnx", "linen", "equinox"])
def test_parameters_of_another_model_are_refused_by_name(library):
    params = models.init(KEY)
    params["output"] = params.pop("out")
    with pytest.raises(UsageError, match=r"missing: out/.*\n  unknown: output/bias, output/kernel\n"):
        MLPS[library].apply(params, X)


def test_bind_returns_the_users_own_object():
    params = models.init(KEY)
    for library, kind in (("nnx", models.NnxMlp), ("linen", models.LinenMlp), ("equinox", models.EquinoxMlp)):
        bound = MLPS[library].bind(params)
        assert isinstance(bound, kind)
        assert close(bound.hidden(X), X @ params["hidden"]["kernel"])
    assert close(MLPS["pair"].bind(params)(X), models.apply(params, X))


def test_a_model_is_told_what_it_has_parameters_for():
    def apply(params, x, *, train, deterministic, rng, scale=1, **rest):
        assert not rest
        return params * x + train + 10 * deterministic + jax.random.uniform(rng) + scale

    model = functional((lambda key: jnp.ones(()), apply))
    drawn = jax.random.uniform(KEY)
    assert model.apply(2.0, 3.0, key=KEY, train=True) == 7 + 1 + drawn
    assert model.apply(2.0, 3.0, key=KEY, scale=5) == 6 + 10 + drawn + 5


def test_what_is_given_by_position_is_not_told_again():
    class Scaled(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            return x * (2 if train else 1)

    model = functional(Scaled(), models.INPUTS)
    assert (model.apply({}, X, True) == 2 * X).all()
    assert (model.apply({}, X, train=True) == 2 * X).all()
    assert (model.apply({}, X) == X).all()


def test_a_pair_may_carry_state():
    def apply(params, x, model_state, train):
        return params * x, {"calls": model_state["calls"] + 1}

    model = functional((lambda key: Variables(jnp.ones(()), {"calls": jnp.zeros(())}), apply))
    start = model.init(KEY)
    assert model.apply(start.params, 3.0, model_state=start.model_state, train=True) == (3, {"calls": 1})
    assert model.apply(start.params, 3.0, model_state=start.model_state) == (3, {"calls": 0})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "cannot tell what kind of model an object of type int is"),
        (models.LinenMlp, "cannot tell what kind of model LinenMlp"),
        (models.init, r"a function with a parameter `key` must return .* it returned a value of type dict"),
        (
            lambda rngs: {},
            r"a function with a parameter `rngs` must return .* it returned a value of type dict",
        ),
        (lambda config: None, r"<lambda>\(config\)"),
        (models.LinenMlp(), "missing a required argument: 'x'"),
        ((lambda key: Variables(1.0, {}), models.apply), "has no parameter `model_state`"),
    ],
)
def test_what_is_no_model_is_said_with_what_was_found(model, message):
    with pytest.raises(UsageError, match=message):
        functional(model)


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "equinox", None)
    monkeypatch.delitem(sys.modules, "meshwright.engine._adapters._equinox")
    with pytest.raises(UsageError, match=r"pip install 'meshwright\[equinox\]'"):
        functional(lambda key: None)


def test_what_is_functional_already_stays_as_it_is():
    assert functional(MLPS["linen"]) is MLPS["linen"]


@dataclasses.dataclass(frozen=True)
class Settings:
    deterministic: bool = False


class LinenField(linen.Module):
    settings: Settings = Settings()
    dropout: linen.Module = linen.Dropout(0.5, deterministic=False)
    training: bool = True

    @linen.compact
    def __call__(self, x):
        x = self.dropout(linen.Dropout(0.5)(x, deterministic=self.settings.deterministic))
        return linen.Dropout(0.5)(x, deterministic=not self.training)


class NnxField(nnx.Module):
    def __init__(self, rngs):
        self.dropout, self.training = nnx.Dropout(0.5, rngs=rngs), True

    def __call__(self, x):
        return self.dropout(x, deterministic=not self.training)


class EquinoxField(eqx.Module):
    dropout: eqx.nn.Dropout
    training: bool = eqx.field(static=True)

    def __init__(self, key):
        self.dropout, self.training = eqx.nn.Dropout(0.5), True

    def __call__(self, x, key=None):
        return self.dropout(x, key=key, inference=not self.training)


@pytest.mark.parametrize("model", [LinenField(), NnxField, EquinoxField], ids=["linen", "nnx", "equinox"])
def test_a_mode_that_is_a_field_of_the_module_is_off_in_evaluation(model):
    model = functional(model, *([models.INPUTS] if isinstance(model, linen.Module) else []))
    trained, evaluated = (model.apply({}, X, key=KEY, train=train) for train in (True, False))
    assert (trained == 0).any()
    assert (evaluated == X).all()


class LinenHeads(linen.Module):
    heads: dict
    training: bool = True

    @linen.compact
    def __call__(self, x):
        return {name: linen.Dense(width)(x) for name, width in self.heads.items()}


@pytest.mark.parametrize("freeze", [dict, FrozenDict])
def test_the_order_of_a_field_is_the_same_in_evaluation(freeze):
    model = functional(LinenHeads(freeze({"value": 3, "policy": 3, 1: 2})), models.INPUTS)
    params = model.init(KEY)
    trained, evaluated = (model.apply(params, X, key=KEY, train=train) for train in (True, False))
    assert all((trained[name] == evaluated[name]).all() for name in ("value", "policy", 1))


class Pair(NamedTuple):
    first: Settings
    second: Settings


def test_only_the_parts_of_a_module_that_have_a_mode_are_copied_for_evaluation():
    plain = LinenHeads({"b": [3, (4,)], "a": {}}, training=False)
    assert in_evaluation(plain) is plain
    one = Settings()
    new = in_evaluation(LinenHeads({"b": [Pair(one, one)], "a": FrozenDict({"c": {"d": one}})}))
    pair, of_frozen = new.heads["b"][0], new.heads["a"]["c"]["d"]
    assert list(new.heads) == ["b", "a"]
    assert type(pair) is Pair
    assert pair.first is pair.second
    assert of_frozen.deterministic
