import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import UsageError

LAYOUT = mw.Layout(
    mw.make_mesh("data=2,fsdp=4"), (mw.parallel.match(mw.parallel.optional("weight|lora_a"), "fsdp"),)
)
RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-100, 100, (8, 4), np.int8)
BATCH = {"x": RNG.normal(size=(16, 8)).astype(np.float32), "y": RNG.normal(size=(16, 4)).astype(np.float32)}


def init(key):
    """A dense layer of eight-bit weights, and a low-rank addition to it (Hu et al., LoRA, 2021)."""
    lora_a = jax.random.normal(key, (8, 2))
    return {
        "dense": {"weight": WEIGHT, "scale": jnp.float16(0.01), "lora_a": lora_a, "lora_b": jnp.ones((2, 4))}
    }


def loss(params, batch, key):
    dense = params["dense"]
    weight = dense["weight"] * dense["scale"] + dense["lora_a"] @ dense["lora_b"]
    return ((batch["x"] @ weight - batch["y"]) ** 2).mean()


def trained(tx, init=init, loss=loss):
    state, step = mw.training.init_state(init, tx, 0, LAYOUT), mw.make_step(loss, tx, LAYOUT, microbatches=2)
    for _ in range(3):
        state, metrics = step(state, BATCH)
    return state, metrics


def test_low_rank_additions_train_and_the_eight_bit_weights_stay_to_the_bit():
    state, _ = trained(mw.training.Trainable("lora_[ab]", optax.adam(0.1)))
    dense = state.params["dense"]
    assert dense["weight"].dtype == jnp.int8
    np.testing.assert_array_equal(dense["weight"], WEIGHT)
    assert dense["scale"] == jnp.float16(0.01)
    assert not np.allclose(dense["lora_b"], 1)


def test_the_optimizer_knows_only_what_it_trains_and_its_state_lies_beside():
    state = mw.training.abstract_state(init, mw.training.Trainable("lora_.", optax.adam(0.1)), LAYOUT)
    moments = state.opt_state[0].mu
    assert mw.parallel.leaf_names(moments) == ["dense/lora_a", "dense/lora_b"]
    assert moments["dense"]["lora_a"].sharding.spec == P("fsdp")


def test_training_some_is_training_them_alone():
    def alone(params, batch, key):
        frozen = {"weight": WEIGHT, "scale": jnp.float16(0.01)}
        return loss({"dense": frozen | params["dense"]}, batch, key)

    def init_alone(key):
        made = init(key)["dense"]
        return {"dense": {name: made[name] for name in ("lora_a", "lora_b")}}

    some, metrics = trained(mw.training.Trainable("lora_.", optax.adam(0.1)))
    those, expected = trained(optax.adam(0.1), init_alone, alone)
    np.testing.assert_allclose(metrics["grad_norm"].value, expected["grad_norm"].value, rtol=1e-5)
    for name, x in those.params["dense"].items():
        np.testing.assert_allclose(some.params["dense"][name], x, rtol=1e-5)


def test_a_predicate_freezes_a_backbone_by_name_and_array():
    def init(key):
        return {"backbone": {"w": jnp.ones((8, 8))}, "head": {"w": jnp.ones((8, 4)), "b": jnp.ones(4)}}

    def loss(params, batch, key):
        hidden = jnp.tanh(batch["x"] @ params["backbone"]["w"])
        return ((hidden @ params["head"]["w"] + params["head"]["b"] - batch["y"]) ** 2).mean()

    matrices_of_the_head = lambda name, x: name.startswith("params/head/") and len(x.shape) == 2
    state, _ = trained(mw.training.Trainable(matrices_of_the_head, optax.sgd(0.1)), init, loss)
    moved = {name for name, x in mw.base._internal.named_leaves(state.params).items() if not np.all(x == 1)}
    assert moved == {"head/w"}


@pytest.mark.parametrize(
    ("trainable", "says"),
    [
        ("lora", r"nothing to train: trainable='lora' matches none of 4 parameters: params/dense/lora_a, "),
        (lambda name, x: False, "nothing to train"),
        ("weight|lora_a", "params/dense/weight is int8"),
        ("(", r"trainable: '\(' is not a regular expression"),
    ],
)
def test_what_cannot_be_trained_is_told(trainable, says):
    with pytest.raises(UsageError, match=says):
        mw.training.abstract_state(init, mw.training.Trainable(trainable, optax.sgd(0.1)), LAYOUT)
