"""The loss by chunks is the cross entropy of all logits, also on a mesh; what it sends and holds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.lm._models import decoder
from soak import cases


def arrays(shape, vocabulary, dtype=jnp.float32, seed=0):
    """Return hidden [..., D], head [D, V], labels and weights [...], of which some weights are 0."""
    random = np.random.default_rng(seed)
    hidden, head = random.normal(size=shape), random.normal(size=(shape[-1], vocabulary))
    labels, weights = random.integers(0, vocabulary, shape[:-1]), random.integers(0, 3, shape[:-1]) / 2
    narrow = [jnp.asarray(x, dtype) for x in (hidden, head)]
    return [*narrow, jnp.asarray(labels), jnp.asarray(weights, jnp.float32)]


def plain(hidden, head, labels, *, softcap=None, z_loss=0.0, label_smoothing=0.0):
    """Return the losses as they are defined, from all logits at once."""
    logits = jnp.matmul(hidden, head, preferred_element_type=jnp.float32)
    logits = logits if softcap is None else softcap * jnp.tanh(logits / softcap)
    expected = jax.nn.one_hot(labels, head.shape[1]) * (1 - label_smoothing) + label_smoothing / head.shape[1]
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    return log_sum - (expected * logits).sum(-1) + z_loss * log_sum**2


def by_definition(hidden, head, labels, weights, **asked):
    return mw.Mean.of(plain(hidden, head, labels, **asked), weights).value


def by_chunks(hidden, head, labels, weights, **asked):
    return mw.nn.cross_entropy(hidden, head, labels, label_weights=weights, **asked).value


def gradient(function, **asked):
    return jax.jit(jax.value_and_grad(functools.partial(function, **asked), (0, 1, 3)))


@st.composite
def asked(draw):
    some = lambda *values: draw(st.sampled_from(values))
    shape = some((1, 5, 4), (3, 17, 4), (2, 4), (2, 3, 4, 4))
    options = {"softcap": some(None, 2.0), "z_loss": some(0.0, 0.1), "label_smoothing": some(0.0, 0.2)}
    return shape, some(7, 16), some(1, 5, 64), some("once", "per chunk"), options


@settings(max_examples=cases(4, 300))
@given(asked())
def test_chunks_come_to_what_the_definition_says(case):
    shape, vocabulary, chunk, gather, options = case
    given = arrays(shape, vocabulary)
    found = gradient(by_chunks, chunk=chunk, gather=gather, **options)(*given)
    expected = gradient(by_definition, **options)(*given)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


def test_the_losses_of_tokens_have_the_gradient_of_the_definition_with_whatever_each_weighs():
    hidden, head, labels, weights = arrays((3, 17, 4), 7)
    asked = {"softcap": 2.0, "z_loss": 0.1, "label_smoothing": 0.2}

    def of(losses, hidden, head):
        return (jnp.sin(losses(hidden, head, labels, **asked)) * weights).sum()

    chunks = functools.partial(mw.nn._internal.token_losses, chunk=5)
    found, expected = (
        jax.jit(jax.value_and_grad(functools.partial(of, each), (0, 1)))(hidden, head)
        for each in (chunks, plain)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected)


def test_bfloat16_is_as_near_to_float32_as_the_definition():
    narrow = arrays((2, 20, 8), 16, jnp.bfloat16)
    wide = [x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for x in narrow]
    found, expected = gradient(by_chunks, chunk=8)(*narrow), gradient(by_definition)(*wide)
    assert (found[0].dtype, found[1][0].dtype, found[1][1].dtype) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
    near = lambda x, y: np.testing.assert_allclose(x.astype(jnp.float32), y, atol=5e-3)
    jax.tree.map(near, found, expected)


@pytest.mark.parametrize(
    ("mesh", "gather"),
    [("data=2,fsdp=2,tensor=2", "once"), ("fsdp=8", "per chunk"), ("tensor=8", "once"), ("data=8", "once")],
)
@pytest.mark.daily(2)
def test_it_is_the_same_on_a_mesh(mesh, gather):
    given = arrays((8, 17, 16), 32)
    mesh = mw.make_mesh(mesh)
    layout = mw.Layout(mesh, (mw.parallel.match("head", "fsdp", "tensor"),))
    head = jax.device_put(given[1], layout.shardings({"head": given[1]})["head"])
    rows = [jax.device_put(x, layout.batch_sharding) for x in (given[0], *given[2:])]
    with jax.set_mesh(mesh):
        found = gradient(by_chunks, chunk=5, gather=gather)(rows[0], head, *rows[1:])
    expected = gradient(by_definition)(*given)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.slow
def test_microbatches_and_a_mesh_come_to_the_same_gradient():
    hidden, head, labels, weights = arrays((32, 9, 8), 16)
    batch = {"hidden": hidden, "labels": labels, "weights": weights}

    def loss(params, batch):
        given = batch["hidden"], params["head"], batch["labels"]
        return mw.nn.cross_entropy(*given, label_weights=batch["weights"], chunk=4)

    def moved(mesh, microbatches):
        layout = mw.Layout(mw.make_mesh(mesh), (mw.parallel.match("head", "fsdp", "tensor"),))
        state = mw.training.init_state(lambda key: {"head": jnp.array(head)}, optax.sgd(1.0), 0, layout)
        step = mw.make_step(loss, optax.sgd(1.0), layout, microbatches=microbatches)
        return np.asarray(step(state, jax.device_put(batch, layout.batch_sharding))[0].params["head"])

    np.testing.assert_allclose(moved("fsdp=4,tensor=2", 4), moved("data=8", 1), atol=1e-6)


def compiled(length, gather="once"):
    """Return the collectives of the decoder's gradient under `fsdp=8`, and its temporary bytes."""
    cfg = decoder.Config(vocabulary=1024, model=32, layers=1, heads=2, feed_forward=16)
    layout = mw.Layout(mw.make_mesh("fsdp=8"), decoder.RULES)
    params = layout.place(jax.eval_shape(functools.partial(decoder.init, cfg), jax.random.key(0)))
    rows = jax.ShapeDtypeStruct((8, length + 1), np.int32, sharding=layout.batch_sharding)
    loss = lambda params, tokens: decoder.loss(cfg, params, {"tokens": tokens}, gather=gather).total
    with jax.set_mesh(layout.mesh):
        split = jax.tree.map(lambda x: x.sharding, params)
        program = jax.jit(jax.grad(loss), out_shardings=split).lower(params, rows).compile()
    found = mw.observe.collectives(program.as_text(), layout.mesh)
    return sum(each.times * each.sent_nbytes for each in found), program.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_what_devices_send_does_not_grow_with_the_length_of_rows():
    (short, _), (long, memory), (often, less) = compiled(256), compiled(1024), compiled(1024, "per chunk")
    head = 1024 * 32 * 4
    assert long == short
    assert often > long + 3 * 2 * head * 7 / 8  # in each of three more chunks it is gathered and added up
    assert memory - less < 2 * head


def test_no_logits_but_those_of_a_chunk_are_held_whatever_is_kept_for_the_gradient():
    shapes = ((4, 512, 8), jnp.float32), ((8, 64), jnp.float32), ((4, 512), jnp.int32)
    loss = lambda hidden, head, labels: mw.nn.cross_entropy(hidden, head, labels, chunk=32).total
    for policy in ("dots", "dots_no_batch", "everything"):
        kept = jax.grad(mw.training.remat(loss, policy), (0, 1))
        program = jax.jit(kept).lower(*(jax.ShapeDtypeStruct(*each) for each in shapes)).compile()
        assert program.memory_analysis().temp_size_in_bytes < 4 * 512 * 64 * 4 / 2


def test_products_are_counted_and_only_the_losses_of_tokens_compute_logits_again():
    hidden, head, labels, _ = arrays((2, 12, 8), 16)
    one = 2 * 2 * 12 * 8 * 16
    counted = lambda loss: mw.observe.flops(jax.value_and_grad(loss, (0, 1)), hidden, head)
    at_once = counted(lambda hidden, head: mw.nn.cross_entropy(hidden, head, labels, chunk=6).total)
    apart = counted(lambda hidden, head: mw.nn._internal.token_losses(hidden, head, labels, chunk=6).sum())
    assert (at_once.model, at_once.hardware) == (3 * one, 3 * one)
    assert (apart.model, apart.hardware) == (3 * one, 4 * one)


def test_rules_are_those_that_are_found_through_all_logits():
    hidden, head, labels, weights = arrays((8, 12, 64), 256)

    def split(function):
        loss = lambda params, batch: function(batch["hidden"], params["head"], labels, weights)
        rules = mw.infer_rules({"head": head}, loss, {"hidden": hidden})
        return mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), (rules,)).spec("head", head)

    assert split(by_chunks) == split(by_definition) == jax.P(None, "tensor")


def test_second_derivatives_are_those_of_the_definition():
    hidden, head, labels, weights = arrays((1, 5, 3), 7)

    def twice(function):
        inner = jax.grad(lambda head: function(hidden, head, labels, weights))
        return jax.jit(jax.grad(lambda head: (inner(head) ** 2).sum()))(head)

    of_chunks = twice(functools.partial(by_chunks, chunk=2))
    np.testing.assert_allclose(of_chunks, twice(by_definition), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": (4,)}, r"takes hidden \[B, ..., D\]"),
        ({"hidden": (2, 3, 5)}, r"head \[D, V\]: found hidden \(2, 3, 5\)"),
        ({"labels": jnp.zeros((2, 3))}, r"labels are int\[B, ...\].*float32"),
        ({"label_weights": jnp.ones(2)}, r"label_weights \(2,\) do not broadcast"),
        ({"softcap": 0.0}, "softcap=0.0"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"chunk": 0}, "chunk=0"),
        ({"gather": "per-chunk"}, "Did you mean 'per chunk'"),
    ],
)
def test_what_does_not_go_together_is_refused(change, message):
    asked = {"hidden": (2, 3, 4), "labels": jnp.zeros((2, 3), int)} | change
    with pytest.raises(UsageError, match=message):
        mw.nn.cross_entropy(jnp.ones(asked.pop("hidden")), jnp.ones((4, 8)), asked.pop("labels"), **asked)
