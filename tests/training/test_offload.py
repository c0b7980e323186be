import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import UsageError

LAYOUT = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), (mw.parallel.match("w", "fsdp", "tensor"),))
BATCH = {"x": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}
TX = mw.training.skip_exploding(optax.chain(optax.adam(0.1), mw.training.keep_ema(0.9)))


def init(key):
    return {"w": jax.random.normal(key, (8, 4)), "b": jax.random.normal(key, (4,))}


def loss(params, batch, key):
    return ((batch["x"] @ params["w"] + params["b"]) ** 2).mean()


def trained(tx):
    state, step = mw.training.init_state(init, tx, 0, LAYOUT), mw.make_step(loss, tx, LAYOUT, microbatches=2)
    for _ in range(2):
        state, _ = step(state, BATCH)
    return state


@pytest.mark.slow
def test_a_state_in_the_hosts_memory_stays_there_and_trains_alike():
    host, plain = (
        trained(mw.training.offload_opt_state(mw.training.Trainable("w", TX))),
        trained(mw.training.Trainable("w", TX)),
    )
    moment = host.opt_state.inner_state[0][0].mu["w"]
    assert (moment.sharding.memory_kind, moment.sharding.spec) == ("pinned_host", P("fsdp", "tensor"))
    assert host.params["w"].sharding.memory_kind == "device"
    jax.tree.map(np.testing.assert_array_equal, host, plain)


def test_an_average_in_the_hosts_memory_is_evaluated_on_the_devices():
    state = trained(mw.training.offload_opt_state(TX))
    data = lambda: mw.data.padded_batches(BATCH, 8, LAYOUT.batch_sharding)
    measure = lambda params, batch: {"y": (batch["x"] @ params["w"])[:, 0]}
    found = mw.engine.Evaluator(measure, data, LAYOUT, mw.engine.never, params=mw.training.ema_params)(
        mw.engine.Tick(2, last=True), state
    )
    expected = (BATCH["x"] @ np.asarray(mw.training.ema_params(state)["w"]))[:, 0].mean()
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-5)


def test_a_state_around_ready_parameters_goes_there_too():
    state = mw.training.state_from(init(jax.random.key(0)), mw.training.offload_opt_state(TX), 0, LAYOUT)
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(state.opt_state) if x.ndim}
    assert kinds == {"pinned_host"}


def test_a_memory_that_the_devices_lack_is_told_before_anything_compiles():
    with pytest.raises(UsageError, match=r"'tape': cpu .* has .*device"):
        mw.training.abstract_state(init, mw.training.offload_opt_state(TX, "tape"), LAYOUT)
