import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import UsageError

LAYOUT = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), (mw.parallel.match("weight", "fsdp", "tensor"),))
RNG = np.random.default_rng(0)
BATCH = {"x": RNG.normal(size=(16, 8)).astype(np.float32), "y": RNG.normal(size=(16, 4)).astype(np.float32)}


def init(key):
    return {"a": {"weight": jax.random.normal(key, (8, 4)), "bias": jnp.ones(4)}, "gain": jnp.ones(())}


def loss(params, batch, key):
    made = batch["x"] @ params["a"]["weight"] + params["a"]["bias"]
    return ((made * params["gain"] - batch["y"]) ** 2).mean()


def trained(tx, microbatches=2, steps=3):
    state = mw.training.init_state(init, tx, 0, LAYOUT)
    step = mw.make_step(loss, tx, LAYOUT, microbatches=microbatches)
    for _ in range(steps):
        state, _ = step(state, BATCH)
    return mw.base._internal.named_leaves(state.params)


def test_each_parameter_moves_as_its_own_optimizer_alone_would_move_it():
    both = trained(mw.training.by_path([("bias|gain", optax.sgd(0.1)), (".*", optax.adamw(0.01))]), steps=1)
    sgd, adamw = trained(optax.sgd(0.1), 1, steps=1), trained(optax.adamw(0.01), 1, steps=1)
    for name, x in both.items():
        np.testing.assert_allclose(x, (adamw if name == "a/weight" else sgd)[name], rtol=1e-5)


def test_an_optimizer_has_a_state_for_its_own_parameters_beside_them():
    tx = mw.training.by_path([("a/.*", optax.adam(0.1)), (".*", optax.sgd(0.1, momentum=0.9))])
    state = mw.base._internal.named_leaves(mw.training.abstract_state(init, tx, LAYOUT).opt_state)
    beside = {name.rsplit("/mu/")[-1]: x.sharding.spec for name, x in state.items() if "/mu/" in name}
    assert beside == {"a/weight": P("fsdp", "tensor"), "a/bias": P()}
    assert [name.rsplit("/")[-1] for name in state if "trace" in name] == ["gain"]


def test_a_parameter_without_an_optimizer_is_named_before_anything_compiles():
    tx = mw.training.by_path([("bias", optax.sgd(0.1)), ("weights?x", optax.sgd(0.1))])
    with pytest.raises(UsageError, match=r"no optimizer for params/a/weight, params/gain\.\n.*'bias', 'wei"):
        mw.training.abstract_state(init, tx, LAYOUT)


def test_optimizers_by_path_see_only_what_is_trained():
    tx = mw.training.Trainable(
        "a/.*", mw.training.by_path([("bias", optax.sgd(0.1)), ("weight", optax.adam(0.1))])
    )
    state = trained(tx)
    assert state["gain"] == 1
    assert not np.allclose(state["a/bias"], 1)


def test_a_multiplier_is_another_learning_rate():
    factors = [("bias", 0.5), (mw.parallel.optional("b.*"), 9.0)]
    scaled = trained(optax.chain(optax.sgd(0.2), mw.training.scale_by_path(factors)), steps=1)
    np.testing.assert_allclose(scaled["a/bias"], trained(optax.sgd(0.1), steps=1)["a/bias"], rtol=1e-5)
    np.testing.assert_allclose(scaled["a/weight"], trained(optax.sgd(0.2), steps=1)["a/weight"], rtol=1e-5)


def test_decay_by_path_is_that_of_adamw_where_a_pattern_matches():
    rate = optax.scale_by_learning_rate(0.01)
    some = trained(optax.chain(optax.scale_by_adam(), mw.training.decay_by_path([("weight", 0.3)]), rate))
    mask = lambda params: mw.base._internal.map_named(lambda name, _: name == "a/weight", params)
    masked = trained(optax.adamw(0.01, weight_decay=0.3, mask=mask))
    for name, x in some.items():
        np.testing.assert_allclose(x, masked[name], rtol=1e-5)


def test_a_pattern_that_cannot_be_read_is_told():
    with pytest.raises(UsageError, match=r"scale_by_path: '\(' is not a regular expression"):
        mw.training.scale_by_path([("(", 1.0)])
