import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import meshwright as mw
from engine.adapters import models
from meshwright.engine._adapters._functional import functional
from meshwright.errors import UsageError

KEY = jax.random.key(0)


class Annotated(nnx.Module):
    def __init__(self, rngs):
        named = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("embed", "mlp"))
        self.layers = nnx.List([nnx.Linear(4, 8, kernel_init=named, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)])


def test_names_of_axes_are_kept_and_need_not_be_those_of_the_mesh(mesh):
    model = functional(Annotated)
    assert model.axes == {"layers/0/kernel": ("embed", "mlp")}
    with jax.set_mesh(mesh):
        params = jax.jit(model.init)(KEY)
    assert mw.parallel.leaf_names(params) == [
        f"layers/{i}/{name}" for i in "01" for name in ("bias", "kernel")
    ]


def test_a_module_keeps_its_values_and_its_mode():
    module = models.NnxNorm(nnx.Rngs(3))
    module.norm.scale[...] = 7.0
    model = functional(module)
    assert (model.init(KEY).params["norm"]["scale"] == 7).all()
    assert not module.dropout.deterministic


def test_plain_arrays_of_a_module_are_part_of_its_state():
    class Shifted(nnx.Module):
        def __init__(self, rngs):
            self.scale = nnx.Param(jax.random.normal(rngs.params(), ()))
            self.shift = jnp.arange(3)

        def __call__(self, x):
            return self.scale * x + self.shift

    model = functional(Shifted)
    variables = jax.jit(model.init)(KEY)
    assert mw.parallel.leaf_names(variables) == ["params/scale", "model_state/shift"]
    out, _ = model.apply(variables.params, 0.0, model_state=variables.model_state)
    assert out.tolist() == [0, 1, 2]


class Drops(nnx.Module):
    """Two dropouts, one with a stream of its own, and three with a stream that was split."""

    def __init__(self, rngs):
        self.one, self.other = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.three = nnx.vmap(lambda rngs: nnx.Dropout(0.5, rngs=rngs))(rngs.split(3))

    def __call__(self, x):
        each = nnx.vmap(lambda dropout, x: dropout(x), in_axes=(0, None))(self.three, x)
        return jnp.stack([self.one(x), self.other(x), *each])


def test_streams_of_random_numbers_are_neither_parameters_nor_state_and_differ():
    model = functional(Drops)
    assert not model.stateful
    assert model.init(KEY) == {}
    out = model.apply({}, jnp.ones(64), key=KEY, train=True)
    assert len({tuple(row) for row in np.asarray(out).tolist()}) == 5


def test_training_without_a_key_is_refused_and_evaluation_needs_none():
    model = functional(Drops)
    with pytest.raises(UsageError, match="one/rngs/count"):
        model.apply({}, jnp.ones(4), train=True)
    assert (model.apply({}, jnp.ones(4)) == 1).all()


def test_streams_may_be_handed_in_with_the_call():
    class Noisy(nnx.Module):
        def __init__(self, rngs):
            self.dropout = nnx.Dropout(0.5)

        def __call__(self, x, *, rngs=None):
            return self.dropout(x, rngs=rngs)

    out = functional(Noisy).apply({}, jnp.ones(64), key=KEY, train=True)
    assert (out == 0).any()
