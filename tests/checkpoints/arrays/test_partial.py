"""A checkpoint that has less, or more, than is wanted."""

import dataclasses
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._arrays._source import as_source, subtree
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError


@pytest.fixture
def pretrained():
    return as_source({"params/w": np.ones(3), "params/head": np.ones(2), "step": np.array(7)}, "saved")


def test_what_the_checkpoint_lacks_comes_from_the_fallback(pretrained):
    target = {"params": {"w": np.zeros(3), "bias": np.zeros(4)}, "step": 0}
    fallback = {"params": {"bias": np.full(4, 5.0), "w": np.full(3, 5.0)}}
    restored = restore(pretrained, target, fallback=fallback, ignore="params/head")
    assert tree.named_leaves(jax.tree.map(lambda x: float(np.ravel(x)[0]), restored)) == {
        "params/bias": 5,
        "params/w": 1,
        "step": 7,
    }


def test_a_fallback_is_made_only_where_something_is_lacking(pretrained):
    target = {"params": {"w": np.zeros(3), "head": np.zeros(2)}, "step": 0}
    assert restore(pretrained, target, fallback=lambda: pytest.fail("called"))["step"] == 7


def test_what_a_fallback_makes_in_vain_is_gone_before_anything_is_read():
    made, alive = [], []

    def fallback():
        state = {"w": np.zeros(3), "b": np.zeros(2)}
        made.extend(weakref.ref(leaf) for leaf in state.values())
        return state

    def read(index):
        alive.extend(leaf() is not None for leaf in made)
        return np.ones(3)[index]

    saved = as_source({"w": LazyArray((3,), np.dtype("float64"), read)}, "saved")
    restore(saved, {"w": np.zeros(3), "b": np.zeros(2)}, fallback=fallback)
    assert alive == [False, True]


def test_checkpoint_and_fallback_together_must_be_the_target(pretrained):
    target = {"params": {"w": np.zeros(3), "bias": np.zeros(4), "scale": 1.0}, "step": 0}
    fallback = {"params": {"bias": np.zeros(5), "sclae": 1.0}}
    with pytest.raises(CheckpointError) as error:
        restore(pretrained, target, fallback=fallback)
    assert str(error.value).splitlines()[1:] == [
        "  params/scale: in the target, but neither in the checkpoint nor in the fallback",
        "  params/bias: shape (5,) in the fallback, (4,) in the target",
        "  params/sclae: in the fallback, but not in the target",
        "  params/head: in the checkpoint, but not in the target",
    ]


def test_a_checkpoint_of_which_nothing_is_wanted_is_an_error(pretrained):
    with pytest.raises(CheckpointError, match="no leaf of the target is in the checkpoint"):
        restore(pretrained, {"w": 0.0}, fallback={"w": 1.0}, ignore=".*")


def test_only_what_is_ignored_may_be_surplus(pretrained):
    with pytest.raises(CheckpointError, match=r"target:\n  step: in the checkpoint, but not in the target$"):
        restore(pretrained, {"params": {"w": np.zeros(3)}}, ignore="params/.*")


def test_a_fallback_is_put_where_the_target_says(mesh):
    sharding = jax.NamedSharding(mesh, jax.P("fsdp"))
    target = {"w": jax.ShapeDtypeStruct((4,), np.float32, sharding=sharding), "n": 0}
    restored = restore(as_source({"n": np.array(3)}, "saved"), target, fallback={"w": np.ones(4, "float32")})
    assert restored["w"].sharding == sharding
    assert restored["n"] == 3


def test_a_subtree_is_restored_by_its_own_names(pretrained):
    restored = restore(subtree(pretrained, "params"), {"w": np.zeros(3), "head": np.zeros(2)})
    assert restored["w"].tolist() == [1, 1, 1]
    with pytest.raises(CheckpointError, match=r"saved has no arrays below parms/\. Did you mean 'params'"):
        subtree(pretrained, "parms")


def test_a_subtree_is_not_what_only_begins_with_its_name():
    source = as_source({"params/w": np.ones(3), "params_ema/w": np.ones(3)}, "saved")
    assert list(subtree(source, "params").arrays()) == ["w"]


def test_training_starts_with_pretrained_parameters_and_the_rest_from_scratch(mesh, save, same_bytes):
    def init(key):
        return {"w": jax.random.normal(key, (8, 4)), "head": jnp.zeros((4, 2))}

    layout, tx = mw.Layout(mesh), optax.adam(1e-3)
    old = mw.training.init_state(init, tx, 1, layout)
    fresh = mw.training.init_state(init, tx, 2, layout)
    state = restore(
        open_source(save(old)),
        mw.training.abstract_state(init, tx, layout),
        assign=[("params/head|opt_state/.*|step|seed", None)],
        fallback=lambda: mw.training.init_state(init, tx, 2, layout),
        ignore=".*",
    )
    assert same_bytes(state.params["w"], old.params["w"])
    assert same_bytes((state.opt_state, state.step, state.seed), (fresh.opt_state, fresh.step, fresh.seed))
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, fresh)


def test_an_average_is_restored_as_parameters_and_the_optimizer_left_out(mesh, save, same_bytes):
    tx = optax.chain(optax.adam(0.1), mw.training.keep_ema(0.9))
    state = mw.training.state_from({"w": jnp.ones(8)}, tx, 0, mw.Layout(mesh))
    state = dataclasses.replace(state, params=jax.tree.map(lambda x: x * 3, state.params))
    source, target = open_source(save(state)), {"params": state.params}
    averaged = restore(source, target, assign=[("params/(.*)", r"opt_state/1/ema/\1")], ignore=".*")
    assert same_bytes(averaged["params"]["w"], np.ones(8, np.float32))
    with pytest.raises(CheckpointError, match="opt_state/0/0/mu/w: in the checkpoint, but not in the target"):
        restore(source, target)
