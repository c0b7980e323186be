import jax.numpy as jnp
import optax
import pytest

import meshwright as mw
from meshwright.training._statistics import describe_state, num_params, state_sizes


def init(key):
    return mw.training.Variables(
        {"w": jnp.ones((8, 3)), "b": jnp.ones(3, jnp.bfloat16)}, {"mean": jnp.ones(2)}
    )


@pytest.fixture(params=["arrays", "structs"])
def state(request, mesh):
    layout, tx = mw.Layout(mesh, (mw.parallel.match("w", "fsdp"),)), optax.adam(0.1)
    if request.param == "structs":
        return mw.training.abstract_state(init, tx, layout)
    return mw.training.init_state(init, tx, 0, layout)


def test_the_count_is_that_of_the_model(state):
    assert num_params(state.params) == 8 * 3 + 3


def test_sizes_are_of_each_part_and_of_one_device(state):
    params = 24 * 4 + 3 * 2
    assert state_sizes(state) == {
        "num_params": 27,
        "params_bytes": params,
        "opt_state_bytes": 2 * params + 4,
        "model_state_bytes": 8,
        "device_bytes": 3 * (48 + 6) + 4 + 8 + 4 + 4,  # w in halves; Adam's count; the step and the seed
    }


def test_the_table_has_each_array_of_parameters_optimizer_and_model_and_the_sizes(state):
    table = [line.split() for line in describe_state(state).splitlines()]
    assert ["params/w", "8", "×", "3", "float32", "fsdp", "24", "48", "B"] in table
    assert ["params/b", "3", "bfloat16", "replicated", "3", "6", "B"] in table
    assert ["opt_state/0/mu/w", "8", "×", "3", "float32", "fsdp", "24", "48", "B"] in table
    assert ["model_state/mean", "2", "float32", "replicated", "2", "8", "B"] in table
    assert ["num_params:", "27"] in table
    assert ["opt_state:", "208", "B,", "112", "B", "per", "device"] in table
