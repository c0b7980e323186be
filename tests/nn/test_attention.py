"""Attention in every form is what its definition says: values, gradients, logarithms of sums."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.nn._attention import chosen, plain
from meshwright.nn._blockwise import blockwise
from meshwright.nn._hardware import Hardware
from meshwright.nn._inputs import AttentionInputs
from meshwright.nn._kernels import splash, splash_with_lse, why_not_cudnn, why_not_splash
from meshwright.program._program import program_of, walk
from soak import cases

DEFAULTS = {"causal": False, "segments": None, "window": None, "softcap": None, "scale": None, "bias": None}


def arrays(shape, *, heads_of_keys=None, keys=None, seed=0):
    """Return q [B, T, N, H], and k and v [B, S, K, H], of normal numbers."""
    B, T, N, H = shape
    random = np.random.default_rng(seed)
    of_keys = B, keys or T, heads_of_keys or N, H
    return [jnp.asarray(random.normal(size=size), jnp.float32) for size in (shape, of_keys, of_keys)]


def given_of(q, k, v, **asked):
    return AttentionInputs.create(q, k, v, **DEFAULTS | asked)


def by(form, q, k, v, **asked):
    """Return a number that all outputs are in, of which to take the gradient, and the outputs."""
    out, lse = form(given_of(q, k, v, **asked))
    weights = jnp.cos(jnp.arange(out.size)).reshape(out.shape)
    total = (out * weights).sum() + jnp.sin(jnp.where(jnp.isfinite(lse), lse, 0)).sum()
    return total, (out, lse)


def check(q, k, v, block=8, **asked):
    """Hold the form by blocks to the definition."""
    forms = plain, partial(blockwise, block=block)
    calls = [jax.jit(jax.grad(partial(by, form, **asked), (0, 1, 2), has_aux=True)) for form in forms]
    close = partial(np.testing.assert_allclose, atol=2e-5)
    jax.tree.map(close, *(call(q, k, v) for call in calls))


@st.composite
def asked(draw):
    """Draw shapes, masks and a bias; the rows end in the middle of a block or with one."""
    heads = draw(st.sampled_from([1, 2]))
    shape = 2, draw(st.sampled_from([5, 16, 21])), 2 * heads, 4
    keys = draw(st.sampled_from([None, 11, 24]))
    B, T, N, _ = shape
    S = keys or T
    random = np.random.default_rng(draw(st.integers(0, 9)))
    segments = {
        "none": None,
        "one": jnp.asarray(random.integers(0, 3, (B, T))) if keys is None else None,
        "two": (jnp.asarray(random.integers(0, 3, (B, T))), jnp.asarray(random.integers(0, 3, (B, S)))),
    }[draw(st.sampled_from(["none", "one", "two"]))]
    bias = draw(st.sampled_from([None, (1, 1), (B, N), (1, N)]))
    window = draw(st.sampled_from([None, 1, 3, 12]))
    return (shape, heads, keys), {
        "causal": draw(st.booleans()),
        "segments": segments,
        "window": jnp.asarray(window) if window and draw(st.booleans()) else window,
        "softcap": draw(st.sampled_from([None, 2.0])),
        "scale": draw(st.sampled_from([None, 0.7])),
        "bias": None if bias is None else jnp.asarray(random.normal(size=(*bias, T, S)), jnp.float32),
    }


@settings(max_examples=cases(4, 300))
@given(asked())
def test_blocks_come_to_what_the_definition_says(case):
    (shape, heads, keys), asked = case
    check(*arrays(shape, heads_of_keys=heads, keys=keys), **asked)


@pytest.mark.parametrize("size", [1, 2])
def test_the_gradient_of_a_bias_is_that_of_the_definition(size):
    q, k, v = arrays((2, 19, 4, 4), heads_of_keys=2)
    bias = jnp.asarray(np.random.default_rng(1).normal(size=(size, 4, 19, 19)), jnp.float32)
    found, expected = (
        jax.jit(jax.grad(lambda bias, form=form: by(form, q, k, v, bias=bias, causal=True)[0]))(bias)
        for form in (partial(blockwise, block=8), plain)
    )
    np.testing.assert_allclose(found, expected, atol=2e-5)


def distances(table, t, s):
    return table[:, jnp.clip(t[:, None] - s, 0, 5)]


@pytest.mark.slow
def test_a_bias_that_is_computed_is_that_of_an_array_and_has_its_gradient():
    q, k, v = arrays((2, 19, 4, 4), heads_of_keys=2)
    table = jnp.asarray(np.random.default_rng(1).normal(size=(4, 6)), jnp.float32)

    def of(form, table):
        return by(form, q, k, v, bias=mw.nn._internal.Bias(distances, table), causal=True)[0]

    whole = distances(table, jnp.arange(19), jnp.arange(19))[None]
    small = partial(blockwise, block=8)
    expected = by(plain, q, k, v, bias=whole, causal=True)[0]
    np.testing.assert_allclose(of(small, table), expected, rtol=1e-5)
    found, expected = (jax.jit(jax.grad(partial(of, form)))(table) for form in (small, plain))
    np.testing.assert_allclose(found, expected, atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "blockwise"])
@pytest.mark.daily(1)
def test_a_query_that_sees_no_key_gives_nothing_and_has_no_gradient(form):
    q, k, v = arrays((1, 4, 2, 4))
    segments = jnp.array([[1, 1, 7, 1]]), jnp.array([[1, 1, 1, 2]])

    def total(q):
        return (mw.nn.attention(q, k, v, segments=segments, form=form) ** 2).sum()

    assert not mw.nn.attention(q, k, v, segments=segments, form=form)[:, 2].any()
    gradient = jax.grad(total)(q)
    assert np.isfinite(gradient).all()
    assert not gradient[:, 2].any()


@pytest.mark.slow
def test_parts_over_several_sets_of_keys_are_joined_by_the_logarithms():
    q, k, v = arrays((1, 12, 2, 4))
    parts = [mw.nn.attention(q, k[:, of], v[:, of], with_lse=True) for of in (slice(0, 5), slice(5, 12))]
    weights = jax.nn.softmax(jnp.stack([lse for _, lse in parts]), axis=0)
    joined = sum(
        out * weight.swapaxes(1, 2)[..., None] for (out, _), weight in zip(parts, weights, strict=True)
    )
    np.testing.assert_allclose(joined, mw.nn.attention(q, k, v), atol=1e-5)


def test_blocks_that_no_query_sees_are_not_computed():
    q, k, v = arrays((1, 64, 1, 4))

    def length(**asked):
        jaxpr = jax.make_jaxpr(lambda q: blockwise(given_of(q, k, v, **asked), block=8)[0])(q)
        scans = [e for e in all_equations(jaxpr.jaxpr) if e.primitive.name == "scan"]
        return scans[0].params["length"]

    assert (length(), length(causal=True), length(causal=True, window=8)) == (64, 36, 15)


def test_blocks_are_even_so_that_little_is_padded():
    x = jnp.ones((1, 513, 1, 4))
    found = jax.make_jaxpr(lambda x: blockwise(given_of(x, x, x, causal=True), block=512)[0])(x)
    scores = [e.outvars[0].aval for e in all_equations(found.jaxpr) if e.primitive.name == "dot_general"]
    assert max(each.size for each in scores) == 272 * 272


def test_scores_that_the_gradient_computes_again_are_told_apart():
    x = jax.ShapeDtypeStruct((1, 1024, 1, 8), jnp.float32)
    loss = lambda q, k, v: mw.nn.attention(q, k, v, causal=True).sum()
    found = mw.observe.flops(jax.grad(loss, argnums=(0, 1, 2)), x, x, x)
    pairs = 3 * 512 * 512  # of 2 x 2 blocks
    assert (found.model, found.hardware - found.model) == (6 * 2 * 8 * pairs, 2 * 8 * pairs)


def all_equations(jaxpr):
    found = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for value in equation.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                below = getattr(each, "jaxpr", each)
                if hasattr(below, "eqns"):
                    found += all_equations(below)
    return found


def test_no_array_of_queries_times_keys_is_there_in_the_gradient_of_long_rows():
    T = 4096
    x = jax.ShapeDtypeStruct((1, T, 1, 8), jnp.float32)
    loss = lambda q, k, v: mw.nn.attention(q, k, v, causal=True).sum()
    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(x, x, x)
    largest = max(
        v.aval.size for e in all_equations(jaxpr.jaxpr) for v in e.outvars if hasattr(v.aval, "size")
    )
    assert largest <= T * T / 8


@pytest.mark.slow
def test_bfloat16_is_as_near_to_float32_as_the_dense_form():
    q, k, v = (x.astype(jnp.bfloat16) for x in arrays((1, 40, 2, 8)))
    exact = plain(given_of(*(x.astype(jnp.float32) for x in (q, k, v)), causal=True))[0]
    found = blockwise(given_of(q, k, v, causal=True), block=8)[0]
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), exact, atol=0.03)


@pytest.mark.slow
def test_it_is_mapped_over_further_axes():
    q, k, v = (jnp.stack([x, 2 * x]) for x in arrays((1, 20, 2, 4)))
    call = partial(mw.nn.attention, causal=True, form="blockwise")
    found = jax.vmap(call)(q, k, v)
    np.testing.assert_allclose(found[1], call(q[1], k[1], v[1]), atol=1e-6)


@pytest.mark.slow
def test_second_derivatives_are_those_of_the_definition():
    q, k, v = arrays((1, 9, 1, 2))

    def twice(form):
        inner = jax.grad(lambda q: (form(given_of(q, k, v, causal=True))[0] ** 2).sum())
        return jax.jit(jax.grad(lambda q: (inner(q) ** 2).sum()))(q)

    np.testing.assert_allclose(twice(partial(blockwise, block=4)), twice(plain), atol=1e-4)


@pytest.mark.parametrize("mesh", ["data=2,tensor=4", "data=8", "tensor=2,fsdp=4"])
def test_it_is_split_over_a_mesh_by_rows_and_heads(mesh):
    q, k, v = arrays((8, 24, 4, 4))
    mesh = mw.make_mesh(mesh)
    axes = [tuple(a for a in ("data", "fsdp") if a in mesh.axis_names) or None]
    spec = jax.P(*axes, None, "tensor" if "tensor" in mesh.axis_names else None)
    sharding = jax.NamedSharding(mesh, spec)
    call = jax.jit(lambda q, k, v: blockwise(given_of(q, k, v, causal=True), block=8)[0])
    found = call(*(jax.device_put(x, sharding) for x in (q, k, v)))
    np.testing.assert_allclose(found, call(q, k, v), atol=1e-5)


@pytest.mark.slow
def test_a_kernel_that_ignores_segments_is_caught():
    ignoring = lambda *arrays, segments, **asked: mw.nn.attention(*arrays, **asked)
    found = [*mw.nn._internal.self_check(ignoring, num_cases=2)]
    assert [each.passed for each in found] == ["segments" not in each.mask for each in found]
    assert not all(each.passed for each in found)


H100, A100 = Hardware("gpu", (9, 0)), Hardware("gpu", (8, 0))


@pytest.mark.parametrize(
    ("change", "hardware", "reason"),
    [
        ({}, H100, None),
        ({"window": 8}, A100, None),
        ({"head": 256}, H100, None),
        ({"head": 256}, A100, "multiples of 8 up to 128"),
        ({"head": 12}, H100, "multiples of 8"),
        ({}, Hardware("cpu"), "NVIDIA GPU"),
        ({}, Hardware("gpu", (7, 5)), "8.0 or higher"),
        ({"dtype": jnp.float32}, H100, "not all bfloat16"),
        ({"softcap": 2.0}, H100, "soft cap"),
        ({"segments": jnp.zeros((1, 16), int)}, H100, "segments"),
        ({"bias": jnp.zeros((1, 1, 16, 16))}, H100, "bias"),
        ({"bias": mw.nn._internal.Bias(lambda x, t, s: x, jnp.zeros((2, 16, 16)))}, H100, "bias"),
        ({"window": jnp.asarray(8)}, H100, "window must be a number"),
        ({"window": 8, "causal": False}, H100, "with causal=True"),
        ({"keys": 24}, H100, "as many queries as keys"),
        ({"with_lse": True}, H100, "log-sum-exp"),
    ],
)
def test_cudnn_is_asked_only_for_what_it_computes(change, hardware, reason):
    asked = {"head": 64, "dtype": jnp.bfloat16, "causal": True, "with_lse": False, "keys": 16} | change
    keys, head, dtype, with_lse = (asked.pop(name) for name in ("keys", "head", "dtype", "with_lse"))
    q, k, v = (jnp.zeros((1, length, 2, head), dtype) for length in (16, keys, keys))
    found = why_not_cudnn(given_of(q, k, v, **asked), with_lse, hardware)
    assert found is None if reason is None else reason in found


def test_cudnn_is_refused_by_name_where_it_does_not_compute_what_is_asked_for():
    q, k, v = arrays((1, 4, 2, 8))
    with pytest.raises(UsageError, match="does not support these arguments: it needs an NVIDIA GPU"):
        mw.nn.attention(q, k, v, form="cudnn")


@pytest.mark.parametrize(
    ("form", "no", "why"),
    [
        ("cudnn", {"softcap": 2.0}, "no soft cap"),
        ("splash", {"bias": jnp.zeros((1, 1, 1024, 1024))}, "no bias"),
    ],
)
def test_a_plan_traces_a_kernel_without_its_library(form, no, why):
    """What the kernel cannot compute is refused there as on the hardware."""
    q, k, v = (x.astype(jnp.bfloat16) for x in arrays((8, 1024, 2, 64)))
    planned = AbstractMesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    with mw.parallel._internal.in_mesh(planned):
        traced = jax.make_jaxpr(partial(mw.nn.attention, causal=True, form=form))(q, k, v)
        with pytest.raises(UsageError, match=f"it (has|takes) {why}"):
            mw.nn.attention(q, k, v, form=form, **no)
    products = [x for x in walk(program_of(traced)) if x.kind == "dot_general"]
    assert products
    assert all(x.is_fused_attention for x in products)


def drawn(operand, t, s):
    return operand + jax.random.normal(jax.random.key(0), (4, len(t), len(s)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (1, 4, 4)}, r"takes q \[B, T, N, H\]"),
        ({"q": (1, 4, 3, 4)}, "must divide that of q"),
        ({"q": (2, 4, 4, 4)}, "q the same B and H"),
        ({"segments": jnp.zeros((1, 3), int)}, r"segments have shapes \(1, 3\) for queries"),
        ({"window": 0}, "window=0"),
        ({"softcap": -1.0}, "softcap=-1.0"),
        ({"bias": jnp.zeros((4, 4))}, r"bias must be \[B or 1, N or 1, T, S\]"),
        (
            {"bias": mw.nn._internal.Bias(lambda x, t, s: x, jnp.zeros(3))},
            r"must return \[N, t, s\].*found \(3,\)",
        ),
        ({"bias": mw.nn._internal.Bias(drawn, jnp.zeros(()))}, "a Bias must not draw random numbers"),
        ({"form": "blokwise"}, "Did you mean 'blockwise'"),
        ({"window": 2.5}, "window must be a whole number of positions.*found 2.5"),
        ({"window": "8"}, "window must be a whole number of positions.*found '8'"),
    ],
)
def test_what_does_not_go_together_is_refused(change, message):
    q, k, v = arrays((1, 4, 4, 4), heads_of_keys=2)
    asked = dict(change)
    if "q" in asked:
        q = jnp.zeros(asked.pop("q"))
    with pytest.raises(UsageError, match=message):
        mw.nn.attention(q, k, v, **asked)


@pytest.mark.parametrize(("asked", "blocks"), [({}, 16), ({"window": 128}, 8), ({"causal": False}, 16)])
def test_the_blocks_that_splash_visits_are_counted(asked, blocks):
    x = jax.ShapeDtypeStruct((2, 2048, 4, 64), jnp.bfloat16)

    def loss(q, k, v):
        return splash(given_of(q, k, v, **{"causal": True, **asked})).astype(jnp.float32).sum()

    found = mw.observe.flops(jax.grad(loss, argnums=(0, 1, 2)), x, x, x)
    again = dict.fromkeys((True, False), 0)
    for kind, count in found.products.items():
        again[kind.recomputed] += count if kind.kind == "attention" else 0
    product = 2 * 64 * (2 * 4 * blocks * 512 * 512)  # of all rows and heads
    assert (again, found.not_counted) == ({False: 6 * product, True: 3 * product}, {})


TPU = Hardware("tpu")
SPLIT = Hardware("tpu", mesh={"fsdp": 4, "tensor": 2}, num_devices=8)


@pytest.mark.parametrize(
    ("change", "hardware", "reason"),
    [
        ({}, TPU, None),
        ({"causal": False}, TPU, None),
        ({"dtype": jnp.float32}, TPU, None),
        ({"window": 8, "softcap": 2.0, "segments": jnp.zeros((4, 256), int)}, TPU, None),
        ({"window": 8, "causal": False}, TPU, None),
        ({"head": 80}, TPU, None),
        ({"keys": 128}, TPU, None),
        ({}, H100, "needs a TPU"),
        ({"head": 32}, TPU, "multiples of 16 from 64 to 256"),
        ({"head": 100}, TPU, "multiples of 16 from 64 to 256"),
        ({"dtype": jnp.float16}, TPU, "not all bfloat16 or all float32"),
        ({"length": 200, "keys": 200}, TPU, "multiples of 128"),
        ({"bias": jnp.zeros((1, 1, 256, 256))}, TPU, "no bias"),
        ({"window": jnp.asarray(8)}, TPU, "window must be a number"),
        ({"segments": (jnp.zeros((4, 256), int),) * 2}, TPU, "sees no key"),
        ({"with_lse": True}, TPU, None),
        ({"heads": 1}, SPLIT, "tensor=2 does not divide 1 heads of keys"),
        ({}, Hardware("tpu", num_devices=8), "no mesh"),
        ({}, Hardware("tpu", mesh={"tensor": 2}, num_devices=2, is_partly_manual=True), "shard_map"),
    ],
)
def test_splash_is_asked_only_for_what_it_computes(change, hardware, reason):
    usual = {"head": 64, "heads": 2, "dtype": jnp.bfloat16, "causal": True, "with_lse": False, "length": 256}
    asked = {**usual, "keys": 256, **change}
    sizes = ("head", "heads", "dtype", "with_lse", "length", "keys")
    head, heads, dtype, with_lse, length, keys = (asked.pop(name) for name in sizes)
    q, k, v = (jnp.zeros((4, rows, heads, head), dtype) for rows in (length, keys, keys))
    with mw.parallel._internal.in_mesh(mw.make_mesh("fsdp=4,tensor=2")):
        found = why_not_splash(given_of(q, k, v, **asked), with_lse, hardware)
    assert found is None if reason is None else reason in found


def test_splash_is_not_asked_for_rows_that_the_mesh_does_not_divide():
    q, k, v = (jnp.zeros((3, 256, 2, 64)) for _ in "qkv")
    with mw.parallel._internal.in_mesh(mw.make_mesh("fsdp=4,tensor=2")):
        assert "does not divide 3 rows" in why_not_splash(given_of(q, k, v), False, SPLIT)


@pytest.mark.parametrize(
    ("length", "hardware", "form"),
    [
        (512, Hardware("tpu"), "dense"),
        (1024, Hardware("tpu"), "splash"),
        (1024, H100, "cudnn"),
        (1024, Hardware("gpu", (7, 0)), "blockwise"),
        (1024, Hardware("cpu"), "blockwise"),
        (1000, Hardware("tpu"), "blockwise"),
    ],
)
def test_the_form_goes_by_length_and_hardware(length, hardware, form):
    x = jnp.zeros((1, length, 1, 64), jnp.bfloat16)
    assert chosen(given_of(x, x, x, causal=True), False, hardware) == form


def test_the_mesh_says_for_which_devices_a_program_is_traced():
    device = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    types = (AxisType.Auto,) * 2
    tpus = AbstractMesh((4, 2), ("fsdp", "tensor"), axis_types=types, abstract_device=device)
    with mw.parallel._internal.in_mesh(tpus):
        assert Hardware.current() == Hardware("tpu", mesh={"fsdp": 4, "tensor": 2}, num_devices=8)
    with mw.parallel._internal.in_mesh(mw.make_mesh("data=1", jax.devices()[:1])):
        assert Hardware.current() == Hardware("cpu")
    assert Hardware.current() == Hardware("cpu", num_devices=8)


def test_splash_is_refused_by_name_where_there_is_no_tpu():
    q, k, v = arrays((1, 128, 2, 64))
    with pytest.raises(UsageError, match="form='splash' does not support these arguments: it needs a TPU"):
        mw.nn.attention(q, k, v, form="splash")


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"causal": True, "window": 40},
        {"window": 40, "segments": jnp.asarray(np.arange(256)[None] // 100)},
        {"causal": True, "softcap": 3.0, "scale": 0.2},
    ],
)
@pytest.mark.daily(1)
def test_splash_comes_to_what_the_definition_says(asked):
    q, k, v = arrays((1, 256, 2, 64), heads_of_keys=1)
    forms = plain, lambda given: (splash(given, interpret=True), jnp.zeros(()))
    calls = [jax.jit(jax.grad(partial(by_values, form, **asked), (0, 1, 2), has_aux=True)) for form in forms]
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), *(call(q, k, v) for call in calls))


@pytest.mark.slow
def test_splash_gives_the_logarithms_of_sums_and_their_gradient():
    q, k, v = arrays((1, 256, 2, 64), heads_of_keys=1)
    asked = {"causal": True, "softcap": 3.0, "segments": jnp.asarray(np.arange(256)[None] // 100)}
    forms = plain, partial(splash_with_lse, interpret=True)
    calls = [jax.jit(jax.grad(partial(by, form, **asked), (0, 1, 2), has_aux=True)) for form in forms]
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), *(call(q, k, v) for call in calls))


def by_values(form, q, k, v, **asked):
    """As `by`, without the logarithms of sums."""
    out, _ = form(given_of(q, k, v, **asked))
    return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2,fsdp=2,tensor=2", "data=4", "tensor=2"])
@pytest.mark.daily(1)
def test_splash_is_split_over_rows_and_heads_without_an_exchange(mesh):
    q, k, v = arrays((4, 128, 4, 64), heads_of_keys=2)
    segments = jnp.asarray(np.arange(4 * 128).reshape(4, 128) // 100)
    mesh = mw.make_mesh(mesh, jax.devices()[: 8 if mesh.count("=") > 1 else int(mesh[-1])])
    axes = tuple(a for a in ("data", "fsdp") if a in mesh.axis_names) or None
    sharding = jax.NamedSharding(mesh, jax.P(axes, None, "tensor" if "tensor" in mesh.axis_names else None))
    given = partial(given_of, causal=True, segments=segments)
    call = jax.jit(lambda q, k, v: splash(given(q, k, v), interpret=True))
    with mw.parallel._internal.in_mesh(mesh):
        compiled = call.lower(*(jax.device_put(x, sharding) for x in (q, k, v))).compile()
        found = compiled(*(jax.device_put(x, sharding) for x in (q, k, v)))
    np.testing.assert_allclose(found, plain(given(q, k, v))[0], atol=2e-5)
    assert not mw.observe.collectives(compiled.as_text(), mesh)
