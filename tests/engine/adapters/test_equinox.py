import equinox as eqx
import jax
import jax.numpy as jnp

import meshwright as mw
from engine.adapters import models
from meshwright.engine._adapters._functional import functional

KEY = jax.random.key(0)


class Mixed(eqx.Module):
    layers: list
    order: jax.Array
    name: str = "mixed"

    def __init__(self, key):
        self.layers = [eqx.nn.Linear(4, 4, key=k) for k in jax.random.split(key)]
        self.order = jnp.array([2, 0, 1, 3])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)[self.order]
        return x


def test_floating_arrays_are_parameters_and_others_are_state():
    variables = functional(Mixed).init(KEY)
    assert mw.parallel.leaf_names(variables.params) == [
        f"layers/{i}/{name}" for i in "01" for name in ("bias", "weight")
    ]
    assert mw.parallel.leaf_names(variables.model_state) == ["order"]


def test_a_module_and_its_class_compute_the_same():
    module, model = Mixed(KEY), functional(Mixed)
    variables = functional(module).init(jax.random.key(1))
    out, _ = model.apply(variables.params, jnp.ones(4), model_state=variables.model_state)
    assert jnp.allclose(out, module(jnp.ones(4)))


def test_a_stateful_module_is_bound_with_its_state():
    model = functional(eqx.nn.make_with_state(models.EquinoxNorm)(key=KEY))
    variables = model.init(KEY)
    assert mw.parallel.leaf_names(variables.params) == ["norm/bias", "norm/weight"]
    module, state = model.bind(variables.params, model_state=variables.model_state)
    assert isinstance(module, models.EquinoxNorm)
    assert module.dropout.inference
    assert (state.get(module.norm.batch_counter) == 0).all()
