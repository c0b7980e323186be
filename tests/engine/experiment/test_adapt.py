"""Arrays of a checkpoint that become arrays of other shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.engine._experiment._builders import replace_prefix, truncate, truncate_left
from meshwright.errors import CheckpointError, UsageError

LAYOUT = mw.Layout(mw.make_mesh("data=2,fsdp=4"), (lambda name, x, mesh: P("fsdp"),))
TX = optax.adam(0.1)


def init_of(length, key):
    keys = jax.random.split(key, 3)
    return {
        "position": jax.random.normal(keys[0], (length, 4)),
        "right": jax.random.normal(keys[1], (4, length)).astype(jnp.bfloat16),
        "w": jax.random.normal(keys[2], (8, 4)),
    }


def init(length):
    return jax.tree_util.Partial(init_of, length)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pretrained")
    state = mw.training.init_state(init(8), TX, 0, LAYOUT)
    with mw.Checkpoints(directory) as checkpoints:
        checkpoints.save(1, state)
    return str(directory), state.params


def begun(path, length, *adapt):
    builder = mw.engine.from_checkpoint(path, adapt=adapt)
    return mw.training.state_around(
        builder(mw.training.abstract_state(init(length), TX, LAYOUT)), init(length), TX, 1, LAYOUT
    )


def test_longer_arrays_are_cut_at_either_end(pretrained):
    path, saved = pretrained
    params = begun(path, 4, ("params/position", truncate()), ("params/right", truncate_left(-1))).params
    np.testing.assert_array_equal(params["position"], saved["position"][:4])
    np.testing.assert_array_equal(params["right"], saved["right"][:, 4:])
    np.testing.assert_array_equal(params["w"], saved["w"])
    assert params["position"].sharding.spec == P("fsdp")


@pytest.mark.slow
def test_shorter_arrays_come_first_and_the_rest_is_as_from_scratch(pretrained):
    path, saved = pretrained
    state = begun(path, 12, ("params/position", replace_prefix()), ("params/right", replace_prefix(1)))
    scratch = mw.training.init_state(init(12), TX, 1, LAYOUT).params
    np.testing.assert_array_equal(state.params["position"][:8], saved["position"])
    np.testing.assert_array_equal(state.params["position"][8:], scratch["position"][8:])
    np.testing.assert_array_equal(state.params["right"][:, :8], saved["right"])
    np.testing.assert_array_equal(state.params["right"][:, 8:], scratch["right"][:, 8:])
    assert state.params["position"].sharding.spec == P("fsdp")
    assert state.opt_state[0].mu["position"].shape == (12, 4)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(-2, 1))
def test_lengths_decide_what_can_be_done(has, wants, dim):
    def shape(length):
        return (length, 3) if dim % 2 == 0 else (3, length)

    saved, wanted = np.arange(3 * has).reshape(shape(has)), jax.ShapeDtypeStruct(shape(wants), np.int64)
    rows = np.split(saved, has, dim)
    for adapt, kept in ((truncate(dim), rows[:wants]), (truncate_left(dim), rows[-wants:])):
        if has < wants:
            with pytest.raises(CheckpointError, match="replace_prefix"):
                adapt(saved, wanted)
        else:
            np.testing.assert_array_equal(adapt(saved, wanted), np.concatenate(kept, dim))
    if has > wants:
        with pytest.raises(CheckpointError, match="truncate"):
            replace_prefix(dim)(saved, wanted)


def test_all_arrays_that_cannot_be_adapted_are_listed(pretrained):
    rules = [("params/position", truncate()), ("params/right", replace_prefix(0))]
    with pytest.raises(
        CheckpointError,
        match=r"(?s)params/position: expected at least 12 .* 8.*params/right: expected shape.*0",
    ):
        begun(pretrained[0], 12, *rules)


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dimension_that_is_not_there_is_an_error(dim):
    with pytest.raises(CheckpointError, match=f"dimension {dim} may differ"):
        truncate(dim)(np.ones((2, 2)), jax.ShapeDtypeStruct((2, 2), np.float32))


def test_a_rule_that_matches_nothing_is_an_error(pretrained):
    with pytest.raises(UsageError, match="positions"):
        begun(pretrained[0], 8, ("params/positions", truncate()))


def test_what_is_to_be_adapted_may_have_another_name(pretrained):
    path, saved = pretrained
    builder = mw.engine.from_checkpoint(
        path,
        "params/position",
        assign=[("params/position", "params/w")],
        adapt=[("params/position", truncate())],
    )
    given = builder(mw.training.abstract_state(init(4), TX, LAYOUT))
    np.testing.assert_array_equal(given["params/position"], saved["w"][:4])


def test_what_is_to_be_adapted_and_is_not_there_is_an_error(pretrained):
    builder = mw.engine.from_checkpoint(
        pretrained[0], adapt=[("params/w", truncate())], assign=[("params/w", "params/v")]
    )
    with pytest.raises(CheckpointError, match="params/w: assigned params/v, which is not in the checkpoint"):
        builder(mw.training.abstract_state(init(8), TX, LAYOUT))


def test_kernels_are_inflated_and_reduced_by_plain_functions(tmp_path):
    kernel = np.random.default_rng(0).normal(size=(3, 3, 3, 8)).astype(np.float32)
    with mw.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"params": {"inflated": kernel, "reduced": kernel}})

    def inflated(saved, wanted):
        depth = wanted.shape[2]
        return np.repeat(saved[:, :, None], depth, 2) / depth

    def reduced(saved, wanted):
        return saved.sum(2, keepdims=True)

    rules = [("params/inflated", inflated), ("params/reduced", reduced)]
    target = mw.training.abstract_state(
        lambda key: {"inflated": jnp.zeros((3, 3, 4, 3, 8)), "reduced": jnp.zeros((3, 3, 1, 8))},
        TX,
        mw.Layout(LAYOUT.mesh),
    )
    given = mw.engine.from_checkpoint(str(tmp_path), adapt=rules)(target)
    mw.training._internal.check_given(given, target)
    np.testing.assert_allclose(given["params/inflated"].sum(2), kernel, rtol=1e-6)
    np.testing.assert_array_equal(given["params/reduced"][:, :, 0], kernel.sum(2))
