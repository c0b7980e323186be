"""Rules, groups, guards, averages, casts and rematerialisation in one run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw

GROUPS = mw.training.by_path([("b", optax.sgd(0.1, momentum=0.9)), (".*", optax.adamw(0.01))])
GUARDED = mw.training.skip_exploding(
    optax.chain(optax.clip_by_global_norm(1.0), GROUPS, mw.training.keep_ema(0.5)), 1e3
)
TX = mw.training.offload_opt_state(mw.training.update_rules([("encoder/.*", "none")], GUARDED))


def init(key):
    params = {"encoder": {"w": jnp.eye(8)}, "head": {"w": jax.random.normal(key, (8, 4)), "b": jnp.ones(4)}}
    return mw.training.Variables(
        params, {"encoder": {"seen": jnp.zeros(())}, "head": {"seen": jnp.zeros(())}}
    )


def loss(params, batch, key, model_state):
    hidden = jnp.tanh(batch["x"] @ params["encoder"]["w"])
    error = hidden @ params["head"]["w"] + params["head"]["b"]
    return mw.Mean.of(jnp.sum(error**2, 1) * batch["scale"]), {}, jax.tree.map(lambda x: x + 1, model_state)


def trained(mesh, microbatches):
    layout = mw.Layout(mw.make_mesh(mesh), (mw.parallel.match("w", "fsdp", "tensor"),))
    state = mw.training.init_state(init, TX, 0, layout)
    options = {"microbatches": microbatches, "compute_dtype": [("head/b", None), ("w", "bfloat16")]}
    step = mw.make_step(mw.training.remat(loss, "dots"), TX, layout, **options)
    for scale in (1.0, np.nan, 2.0):
        x = np.random.default_rng(int(np.nan_to_num(scale))).normal(size=(32, 8)).astype(np.float32)
        state, _ = step(state, {"x": x, "scale": np.full(32, scale, np.float32)})
    return state


@pytest.fixture(scope="module")
def whole():
    return trained("data=8", 1)


@pytest.mark.slow
def test_a_mesh_and_microbatches_change_no_update_and_no_average(whole):
    state = trained("fsdp=4,tensor=2", 4)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-2, atol=1e-3)
    jax.tree.map(close, state.params, whole.params)
    jax.tree.map(close, mw.training.ema_params(state), mw.training.ema_params(whole))
    moments = {
        k: x for k, x in mw.base._internal.named_leaves(state.opt_state).items() if k.endswith("mu/head/w")
    }
    assert [x.sharding.spec for x in moments.values()] == [P("fsdp", "tensor")]


def test_each_part_does_its_own(whole):
    np.testing.assert_array_equal(whole.params["encoder"]["w"], np.eye(8))
    assert (whole.model_state["encoder"]["seen"], whole.model_state["head"]["seen"]) == (0, 3)
    assert np.abs(whole.params["head"]["b"] - 1).min() > 1e-3
    assert (whole.opt_state.skipped, whole.opt_state.norms.count) == (1, 2)
    assert "encoder" not in " ".join(mw.parallel.leaf_names(whole.opt_state))
