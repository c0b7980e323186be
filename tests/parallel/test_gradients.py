"""Gradients of everything that takes weights, on meshes with axes that do not split the batch.

XLA adds some up over too many devices if it is not told better; those of depthwise convolutions were first.
"""

import re
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.engine._predict._run import BatchedPredict
from meshwright.errors import LayoutError
from meshwright.parallel._rewrites import with_rewrites
from soak import cases, rng

B, C = 16, 8  # examples and channels; images are 6 × 6, their rows are taken for sequences
CONV = ("NHWC", "HWIO", "NHWC")


def conv(x, w, stride=1, groups=1, **more):
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=CONV, feature_group_count=groups, **more
    )


def conv_1d(x, w, groups=1):
    return lax.conv_general_dilated(
        x[:, 0], w, (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=groups
    )


def batch_norm(x, w):
    return (x - x.mean((0, 1, 2))) / jnp.sqrt(x.var((0, 1, 2)) + 1e-6) * w[0] + w[1]


def layer_norm(x, w):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6) * w[0] + w[1]


def adapted(x, w):
    """Each example under the weights that a step of gradient descent on it makes: meta-learning."""
    inner = jax.grad(lambda w, one: (conv(one[None], w, groups=C) ** 2).mean())
    return jax.vmap(lambda one: conv(one[None], w - 0.1 * inner(w, one), groups=C)[0])(x)


def attention(x, w):
    q, k, v = (x[:, 0].reshape(B, 6, 2, 4) * part for part in w)
    return jax.nn.dot_product_attention(q, k, v)


def pool(x, w, add, start):
    return lax.reduce_window(x * w, start, add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def scanned(x, w, layer):
    return lax.scan(lambda x, w: (jnp.tanh(layer(x, w)), None), x, w)[0]


def solved(x, w):
    return jnp.linalg.solve(w @ w.T + jnp.eye(C), x[:, 0].swapaxes(1, 2))


depthwise, ids = partial(conv, groups=C), np.arange(B * 6).reshape(B, 6) * 7 % 32
same, maps = (C, C), (3, 3, 1, C)
WEIGHTS = {
    "attention": ((3, 2, 4), attention),
    "batch norm": ((2, C), batch_norm),
    "cond": (same, lambda x, w: lax.cond(x.sum() > 0, lambda: x @ w, lambda: x @ w.T)),
    "conv": ((3, 3, C, 4), conv),
    "conv 1d": ((3, C, C), conv_1d),
    "conv 1d, causal and depthwise": ((3, 1, C), partial(conv_1d, groups=C)),
    "conv by patches": (same, lambda x, w: lax.conv_general_dilated_patches(x @ w, (2, 2), (2, 2), "SAME")),
    "conv of one kernel over each example": (maps, lambda x, w: jax.vmap(lambda e: depthwise(e[None], w))(x)),
    "conv, depthwise": (maps, depthwise),
    "conv, depthwise, mapped over kernels": ((3, *maps), jax.vmap(depthwise, (None, 0), 1)),
    "conv, depthwise, of two maps for each": ((3, 3, 1, 2 * C), depthwise),
    "conv, depthwise, recomputed": (maps, jax.checkpoint(depthwise)),
    "conv, depthwise, scanned over": ((3, *maps), partial(scanned, layer=depthwise)),
    "conv, dilated": ((2, 2, C, 4), partial(conv, rhs_dilation=(2, 2))),
    "conv, dilated and grouped": ((2, 2, C // 2, 4), partial(conv, rhs_dilation=(2, 2), groups=2)),
    "conv, grouped": ((3, 3, C // 2, 4), partial(conv, groups=2)),
    "conv, grouped and strided": ((3, 3, C // 4, C), partial(conv, groups=4, stride=2)),
    "conv, local": ((6, 6, C * 4, 4), lambda x, w: lax.conv_general_dilated_local(
        x, w, (1, 1), [(0, 1), (0, 1)], (2, 2), dimension_numbers=CONV)),
    "conv, mapped over examples and kernels": ((B, 3, 3, C, 4), jax.vmap(lambda e, w: conv(e[None], w))),
    "conv, mapped over kernels": ((3, 3, 3, C, 4), jax.vmap(conv, (None, 0), 1)),
    "conv, strided": ((3, 3, C, 4), partial(conv, stride=2)),
    "conv, transposed": ((3, 3, C, 4), partial(lax.conv_transpose, strides=(2, 2), padding="SAME")),
    "cumulative": ((3, C), lambda x, w: lax.cumsum(x * w[0], 1) + lax.cumlogsumexp(x * w[1], 2)),
    "dot": (same, jnp.matmul),
    "dot by batches": ((6, C, 4), lambda x, w: jnp.einsum("bhwc,hcd->bhwd", x, w)),
    "fft": ((6, C), lambda x, w: jnp.fft.fft(x * w, axis=2).real),
    "gather": ((32, C), lambda x, w: w[ids]),
    "layer norm": ((2, C), layer_norm),
    "logits": ((32, C), lambda x, w: jax.nn.log_softmax(x[:, 0] @ w.T)[:, :, 3]),
    "map": ((3, *same), lambda x, w: lax.map(lambda w: x @ w, w).swapaxes(0, 1)),
    "meta-learning": (maps, adapted),
    "pool": ((C,), partial(pool, add=lax.add, start=0.0)),
    "pool, largest": ((C,), partial(pool, add=lax.max, start=-jnp.inf)),
    "ragged dot": ((4, *same), lambda x, w: lax.ragged_dot(x[:, 0, 0], w, jnp.array([1, 7, 0, 8]))),
    "scan": ((3, *same), partial(scanned, layer=jnp.matmul)),
    "scan, associative": ((C,), lambda x, w: lax.associative_scan(jnp.multiply, 1 + x * w, axis=1)),
    "scatter": ((6, C), lambda x, w: jnp.zeros((32, C)).at[ids].add(x[:, 0] * w)),
    "segments": ((C,), lambda x, w: jax.ops.segment_sum((x * w).reshape(-1, C), np.arange(576) % 32, 32)),
    "slices": ((9, C), lambda x, w: x * lax.dynamic_slice(w, (2, 0), (6, C)) + jnp.roll(x * w[3], 1, 0)),
    "solve": (same, solved),
    "sort": ((C,), lambda x, w: jnp.sort(x * w, axis=1) + lax.top_k(x * w, 1)[0]),
}  # fmt: skip
"""A shape of weights by name, and a function of images [B, 6, 6, C] and such weights."""


QUICK = (
    *("conv", "conv 1d, causal and depthwise", "conv, depthwise", "conv, depthwise, mapped over kernels"),
    *("conv, depthwise, recomputed", "conv, depthwise, scanned over", "conv, grouped and strided"),
    *("dot", "gather", "meta-learning"),
)
"""Those that went wrong, and some of the others; all of them take long to compile."""
RULES = (
    mw.parallel.match(mw.parallel.optional("dot|logits"), None, "tensor"),
    mw.parallel.match(mw.parallel.optional("conv"), None, None, None, "tensor"),
)


@cache
def gradients(names, mesh, num_devices=8, microbatches=1):
    def init(key):
        keys = jax.random.split(key, len(names))
        return {
            name: 0.5 * jax.random.normal(k, WEIGHTS[name][0]) for k, name in zip(keys, names, strict=True)
        }

    def loss(params, batch, key):
        return sum((WEIGHTS[name][1](batch["x"], params[name]) ** 2).mean() for name in names)

    layout = mw.Layout(mw.make_mesh(mesh, jax.devices()[:num_devices]), RULES)
    keeps = optax.trace(decay=0)  # the gradients, as they are
    state = mw.training.init_state(init, keeps, 0, layout)
    images = np.random.default_rng(0).normal(size=(B, 6, 6, C)).astype(np.float32)
    state, _ = mw.make_step(loss, keeps, layout, microbatches=microbatches)(state, {"x": images})
    return jax.device_get(state.opt_state.trace)


def wrong(found, expected):
    largest = {name: np.abs(expected[name]).max() for name in expected}
    norms = {name: np.linalg.norm(found[name]) / np.linalg.norm(expected[name]) for name in expected}
    return [
        f"{name}: {norms[name]:.3f}"
        for name in expected
        if np.abs(found[name] - expected[name]).max() > 1e-4 * largest[name]
    ]


@pytest.mark.slow
def test_gradients_do_not_depend_on_axes_that_leave_the_batch_whole():
    assert not wrong(gradients(QUICK, "data=2,tensor=4"), gradients(QUICK, "data=1", 1))


def test_gradients_taken_in_evaluation_and_prediction_are_right_too():
    kernels = np.random.default_rng(1).normal(size=maps).astype(np.float32)
    images = np.random.default_rng(2).normal(size=(B, 6, 6, C)).astype(np.float32)

    def found(mesh, num_devices):
        layout = mw.Layout(mw.make_mesh(mesh, jax.devices()[:num_devices]))
        data = [({"x": images}, np.ones(B, np.float32))]
        measure = lambda w, batch: {"score": adapted(batch["x"], w)}
        scores = mw.engine.Evaluator(
            measure, lambda: data, layout, mw.engine.every(1), params=lambda state: state
        )
        predict = BatchedPredict(lambda w, _, batch, key: adapted(batch["x"], w), layout, 0)
        ((_, prediction),) = predict(kernels, None, iter([({"x": images}, range(B))]))
        return scores(mw.engine.Tick(1), jax.device_put(kernels, layout.replicated))["score"], prediction

    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
        found("data=2,tensor=4", 8),
        found("data=1", 1),
    )


def test_a_gradient_that_cannot_be_told_apart_by_devices_is_refused():
    layout = mw.Layout(mw.make_mesh("data=2,tensor=4"), RULES)

    def loss(params, batch, key):
        grouped = jax.shard_map(
            depthwise, in_specs=(P("data"), P()), out_specs=P("data"), axis_names={"data"}
        )
        return (grouped(batch["x"], params["w"]) @ params["dot"]).mean()

    state = mw.training.init_state(
        lambda key: {"w": jnp.ones(maps), "dot": jnp.ones(same)}, optax.sgd(1), 0, layout
    )
    with pytest.raises(LayoutError, match="inside a shard_map that leaves mesh axis 'tensor' to XLA"):
        mw.make_step(loss, optax.sgd(1), layout)(state, {"x": jnp.ones((B, 6, 6, C))})


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["data=8", "data=2,tensor=4", "fsdp=2,tensor=4", "tensor=4,data=2"])
def test_no_gradient_of_any_weight_depends_on_the_mesh(mesh):
    names = tuple(WEIGHTS)
    assert not wrong(gradients(names, mesh), gradients(names, "data=1", 1))
    assert not wrong(gradients(QUICK, mesh, microbatches=2), gradients(QUICK, "data=1", 1))


def random_convolution(draw):
    """Return a convolution, as it may be in a model or in its gradient, of shapes that any mesh divides."""
    of_features, of_batch = draw.choice([(1, 1), (1, 1), (2, 1), (8, 1), (1, 2), (1, 8)])
    dilated = {"lhs_dilation": (draw.choice([1, 2]),), "rhs_dilation": (draw.choice([1, 2]),)}
    convolve = partial(
        lax.conv_general_dilated,
        window_strides=(draw.choice([1, 1, 2]),),
        padding=[(4, 4)],
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=of_features,
        batch_group_count=of_batch,
        **(dilated if draw.random() < 0.5 else {}),
    )
    inputs = 1 if of_features == 8 else 8
    return convolve, (8, 8, of_features * inputs), (draw.choice([4, 8]), inputs, 8)


def random_spec(draw, shape):
    split = [[] for _ in shape]
    for axis in draw.sample(["data", "sequence", "tensor"], draw.randint(0, 3)):
        divide = [axes for axes, size in zip(split, shape, strict=True) if size % 2 ** (len(axes) + 1) == 0]
        draw.choice(divide).append(axis)
    return P(*map(tuple, split))


def test_the_report_to_send_to_others_is_still_true(capsys):
    """When this fails, XLA is mended: `parallel/_rewrites.py` is needed for older versions alone."""
    report = Path(__file__).parents[2] / "docs/upstream-convolution-gradients.md"
    program = re.search(r"```python\n(.*?)```", report.read_text(), re.S)[1]
    exec(re.sub(r"^os.environ.*\n", "", program, flags=re.M), {})
    assert re.findall(r"^\d\.\d$", capsys.readouterr().out, re.M) == ["4.0", "4.0"]


@pytest.mark.soak
@pytest.mark.parametrize("number", range(cases(few=5, many=500)))
def test_convolutions_are_right_however_their_operands_are_split(number):
    draw = rng(f"convolutions/{number}")
    convolve, *shapes = random_convolution(draw)
    layout = mw.Layout(
        mw.make_mesh("data=2,sequence=2,tensor=2"), batch_axis_names=draw.choice([None, ("data", "tensor")])
    )
    arrays = [np.random.default_rng(number).normal(size=shape).astype(np.float32) for shape in shapes]
    shardings = [NamedSharding(layout.mesh, random_spec(draw, shape)) for shape in shapes]
    out = draw.choice([P(), P(None, "sequence"), P("data", None, "tensor")])
    with jax.set_mesh(layout.mesh):
        wanted = lambda *arrays: lax.with_sharding_constraint(convolve(*arrays), out)
        found = jax.jit(with_rewrites(wanted, layout), in_shardings=shardings)(*arrays)
    np.testing.assert_allclose(found, convolve(*arrays), rtol=1e-4, atol=1e-4)
