"""Sequence parallelism for losses that state no split: which constraints are found, what they change."""

import functools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.lm._models import decoder
from meshwright.parallel._mesh import in_mesh
from meshwright.parallel._sequence import splitting_sequences
from meshwright.plan._estimate._traced import traced_costs
from meshwright.program._jaxprs import equations

B, T, D, F, V = 8, 16, 64, 256, 8192
BATCH = {"tokens": jax.ShapeDtypeStruct((B, T), jnp.int32)}
BY_POSITION, GATHERED, BY_FEATURE = P("data", "tensor"), P("data"), P("data", None, "tensor")


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PARAMS = {"embed": struct(V, D), "up": struct(2, D, F), "gate": struct(2, D, F), "down": struct(2, F, D)}


def feed_forward(x, layer):
    y = jnp.tanh(x)
    return x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]


def loss(params, batch, *, remat=False):
    def one(x, layer):
        return feed_forward(x, layer), None

    layers = {name: params[name] for name in ("up", "gate", "down")}
    one = jax.checkpoint(one) if remat else one
    return (jax.lax.scan(one, params["embed"][batch["tokens"]], layers)[0] ** 2).mean()


def layout_for(params, loss, batch=BATCH, mesh="data=2,tensor=4"):
    return mw.Layout(mw.make_mesh(mesh), (mw.infer_rules(params, loss, batch),))


def constraints(loss, params=PARAMS, batch=BATCH, layout=None):
    """The number of constraints in the traced loss, by their spec."""
    layout = layout or layout_for(params, loss, batch)
    with in_mesh(layout.mesh):
        jaxpr = jax.make_jaxpr(splitting_sequences(loss, layout))(params, batch)
    found = (eqn for eqn in equations(jaxpr) if eqn.primitive.name == "sharding_constraint")
    return Counter(eqn.params["sharding"].spec for eqn in found)


LOOKUP = {P(P.UNCONSTRAINED, None): 1, BY_POSITION: 1}


@pytest.mark.parametrize("remat", [False, True])
def test_the_residual_stream_is_split_by_position_between_products(remat):
    """Products with the same factor share its gathering: a layer gathers once for its two weights."""
    layer = Counter({BY_POSITION: 2, GATHERED: 1, BY_FEATURE: 3})
    assert constraints(functools.partial(loss, remat=remat)) == layer + Counter(LOOKUP)


def test_one_jitted_layer_of_columns_and_of_rows_is_told_apart():
    """JAX traces a jitted function once for weights of one shape."""
    dense = jax.jit(lambda x, w: x @ w)

    def attended(params, batch):
        x = params["embed"][batch["tokens"]]
        q, k, v = (dense(x, params[name]).reshape(B, T, 4, -1) for name in "qkv")
        y = jax.nn.dot_product_attention(q, k, v).reshape(B, T, D)
        return (x + dense(y, params["o"])).mean()

    params = {"embed": struct(V, D)} | dict.fromkeys("qkvo", struct(D, D))
    expected = Counter({BY_POSITION: 2, GATHERED: 1, BY_FEATURE: 4}) + Counter(LOOKUP)
    assert constraints(attended, params) == expected


def test_a_loss_that_states_the_split_is_left_as_it_is():
    def stated(params, batch):
        x = mw.parallel.shard_sequence_dim(params["embed"][batch["tokens"]])
        return feed_forward(x, {name: params[name][0] for name in ("up", "gate", "down")}).mean()

    assert constraints(stated) == {BY_POSITION: 1}


def test_positions_that_do_not_divide_stay_whole():
    assert constraints(loss, batch={"tokens": jax.ShapeDtypeStruct((B, T - 1), jnp.int32)}) == {}


def test_rows_without_positions_stay_whole():
    def of_rows(params, batch):
        return jnp.tanh(jnp.tanh(batch["x"] @ params["up"]) @ params["down"]).mean()

    assert constraints(of_rows, {"up": struct(D, F), "down": struct(F, D)}, {"x": struct(B, D)}) == {}


def test_only_auto_asks_for_it():
    rules = (mw.parallel.match("up|gate", None, None, "tensor"), mw.parallel.match("down", None, "tensor"))
    assert constraints(loss, layout=mw.Layout(mw.make_mesh("data=2,tensor=4"), rules)) == {}


def test_a_mesh_without_tensor_changes_nothing():
    layout = layout_for(PARAMS, loss, mesh="data=8")
    assert splitting_sequences(loss, layout) is loss


@functools.cache
def trained(mesh):
    """Parameters after one step of gradient descent."""
    rng = np.random.default_rng(0)
    made = {name: jnp.asarray(rng.normal(size=x.shape) / 8, jnp.float32) for name, x in PARAMS.items()}
    layout = layout_for(PARAMS, loss, mesh=mesh)
    tx = optax.sgd(1.0)
    state = mw.training.init_state(lambda key: made, tx, 0, layout)
    step = mw.make_step(loss, tx, layout)
    rows = {"tokens": rng.integers(0, V, (B, T)).astype(np.int32)}
    return jax.device_get(step(state, rows)[0].params)


@pytest.mark.slow
def test_the_update_is_that_of_data_parallelism():
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        trained("data=2,tensor=4"),
        trained("data=8"),
    )


def recurrent(params, batch):
    """A recurrent layer of two gates side by side, with states split by example, and one more product."""

    def one(h, x):
        gate, new = jnp.split(x + h @ jnp.concatenate([params["gate"], params["new"]], 1), 2, axis=-1)
        h = jax.nn.sigmoid(gate) * h + jnp.tanh(new)
        return h, h

    xs = (batch["x"] @ params["in"]).swapaxes(0, 1)
    _, states = jax.lax.scan(one, jnp.zeros((len(batch["x"]), len(params["gate"]))), xs)
    return ((mw.parallel.shard_batch_dim(states.swapaxes(0, 1)) @ params["out"]) ** 2).mean()


@pytest.mark.parametrize(
    "rules",
    [
        (mw.parallel.match("gate|new|out", "fsdp", "tensor"), mw.parallel.match("in", None, "tensor")),
        (mw.parallel.match("gate", "tensor", "fsdp"), mw.parallel.match("new|in|out", "fsdp")),
        None,
    ],
    ids=["split twice", "in other orders", "inferred"],
)
def test_the_gradients_of_a_recurrent_network_are_those_of_one_device(rules):
    size, rng = 256 if rules is None else 32, np.random.default_rng(0)
    shapes = {"in": (size, 2 * size), "gate": (size, size), "new": (size, size), "out": (size, 2 * size)}
    params = {name: jnp.asarray(rng.normal(size=x) / size**0.5, jnp.float32) for name, x in shapes.items()}
    batch = {"x": rng.normal(size=(16, 8, size)).astype(np.float32)}
    mesh, tx = mw.make_mesh("data=2,fsdp=2,tensor=2"), optax.sgd(1.0)
    layout = mw.Layout(mesh, (mw.infer_rules(params, recurrent, batch),) if rules is None else rules)
    state = mw.training.init_state(lambda key: params, tx, 0, layout)
    new = jax.device_get(mw.make_step(recurrent, tx, layout)(state, batch)[0].params)
    slopes = jax.jit(jax.grad(recurrent))(params, batch)
    for name, slope in slopes.items():
        error = np.abs(params[name] - new[name] - slope).max() / np.abs(slope).max()
        assert error < 1e-3, (name, error)


def test_what_layers_keep_is_split_in_a_plan():
    """A residual stream of 16 rows by 4,096 is kept for each layer, in eighths."""
    cfg = decoder.Config(layers=8, model=512, heads=8, feed_forward=1024, vocabulary=8192)
    params = jax.eval_shape(functools.partial(decoder.init, cfg), jax.random.key(0))
    layers = {name: params["layers"][name] for name in ("gate", "up", "down")}
    params, batch = (
        {"embed": params["embedding"], **layers},
        {"tokens": jax.ShapeDtypeStruct((16, 4096), jnp.int32)},
    )
    remat = functools.partial(loss, remat=True)
    layout, tx = layout_for(params, remat, batch, mesh="tensor=8"), optax.sgd(1.0)
    state = mw.training.abstract_state(lambda key: jax.tree.map(jnp.zeros_like, params), tx, layout)
    step = mw.make_step(remat, tx, layout)
    found = traced_costs(step.trace(state, batch).jaxpr, state, layout)
    residual = math.prod((16, 4096, 512)) * 4
    assert found.memory.activations == pytest.approx(cfg.layers * residual / 8, rel=0.1)
    assert {each.kind for each in found.collectives if each.nbytes > residual / 16} == {
        "all-gather",
        "reduce-scatter",
    }
