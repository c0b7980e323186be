"""Rows split over the axis `sequence`: what any form computes, for models that know nothing of the axis."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import LayoutError, UsageError
from meshwright.lm._models import decoder
from meshwright.nn._inputs import AttentionInputs
from meshwright.nn._sequence_parallel import ring_nbytes
from pairs import pairs, slow_first

CASES = {
    "causal": {"causal": True},
    "both ways": {"softcap": 2.0},
    "window": {"causal": True, "window": 5},
    "wide window": {"causal": True, "window": 20},
    "window as an array": {"causal": True, "window": jnp.asarray(9)},
    "window both ways": {"window": 9},
}


def arrays(heads_of_keys=2):
    random = np.random.default_rng(0)
    sizes = (2, 32, 4, 8), (2, 32, heads_of_keys, 8), (2, 32, heads_of_keys, 8)
    return [jnp.asarray(random.normal(size=size), jnp.float32) for size in sizes]


def total(form, bias, asked, q, k, v, operand):
    if operand is not None:
        asked = asked | {"bias": bias(operand)}
    out, lse = mw.nn.attention(q, k, v, with_lse=True, form=form, **asked)
    weights = jnp.cos(jnp.arange(out.size)).reshape(out.shape)
    return (out * weights).sum() + jnp.sin(lse).sum(), (out, lse)


def check(mesh, form, asked, *, heads_of_keys=2, bias=None, operand=None):
    """Hold a form on a mesh to the dense form on one device: results and gradients."""
    by = [0, 1, 2] if operand is None else [0, 1, 2, 3]
    of = [jax.jit(jax.grad(partial(total, each, bias, asked), by, has_aux=True)) for each in ("dense", form)]
    inputs = (*arrays(heads_of_keys), operand)
    expected = of[0](*inputs)
    with mw.parallel._internal.in_mesh(mw.make_mesh(mesh)):
        found = of[1](*inputs)
    jax.tree.map(partial(np.testing.assert_allclose, atol=3e-5), found, expected)


@pytest.mark.parametrize(
    ("case", "mesh"), pairs([*CASES], ["data=2,sequence=4", "sequence=8", "data=2,sequence=2,tensor=2"])
)
def test_a_ring_computes_what_one_device_does(case, mesh):
    check(mesh, "ring", CASES[case])


@pytest.mark.slow
def test_packed_rows_are_kept_apart_in_a_ring():
    segments = jnp.asarray(np.sort(np.random.default_rng(1).integers(0, 3, (2, 32)), axis=1))
    check("data=2,sequence=4", "ring", {"causal": True, "segments": segments})


@pytest.mark.slow
def test_heads_are_exchanged_for_positions():
    check("data=2,sequence=2,tensor=2", "all-to-all", {"causal": True}, heads_of_keys=4)


@pytest.mark.parametrize("causal", slow_first(True, False))
def test_a_bias_by_distance_goes_with_its_positions(causal):
    table = jnp.asarray(np.random.default_rng(1).normal(size=(4, 11)), jnp.float32)

    def bias(table):
        return mw.nn._internal.Bias(lambda table, t, s: table[:, jnp.clip(t[:, None] - s, -5, 5) + 5], table)

    check("data=2,sequence=4", "ring", {"causal": causal}, bias=bias, operand=table)


@pytest.mark.slow
def test_an_array_of_a_bias_has_its_gradient():
    whole = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 32, 32)), jnp.float32)
    check("data=2,sequence=4", "ring", {"causal": True}, bias=lambda x: x, operand=whole)


def traced(mesh, length, **asked):
    x = jax.ShapeDtypeStruct((2, length, 4, 8), jnp.float32)
    with mw.parallel._internal.in_mesh(mw.make_mesh(mesh)):
        return jax.jit(partial(mw.nn.attention, **asked)).trace(x, x, x)


def test_rows_that_do_not_divide_are_refused_with_a_length_that_does():
    with pytest.raises(LayoutError, match="rows of 30 queries into 8 equal parts") as caught:
        traced("data=2,sequence=4", 30, causal=True)
    assert "sees rows of 32 positions" in str(caught.value)


def test_heads_that_do_not_divide_are_refused_if_they_were_asked_for():
    with pytest.raises(UsageError, match="sequence=8 times tensor=1 does not divide 4 heads of keys"):
        traced("sequence=8", 32, form="all-to-all")


def test_a_form_that_would_hold_whole_rows_is_refused():
    with pytest.raises(UsageError, match="'sequence' of size 8 splits rows"):
        traced("sequence=8", 32, form="dense")


def test_keys_and_values_are_sent_once_to_each_other_device():
    def count(jaxpr):
        times = {"scan": lambda eqn: eqn.params["length"]}
        found = 0
        for eqn in jaxpr.eqns:
            found += eqn.primitive.name == "ppermute"
            inner = [x for x in jax.tree.leaves(list(eqn.params.values())) if hasattr(x, "eqns")]
            found += times.get(eqn.primitive.name, lambda _: 1)(eqn) * sum(map(count, inner))
        return found

    # Not causal: no rows change places. Keys and values are one array.
    assert count(traced("sequence=8", 64, form="ring").jaxpr) == 7


@pytest.mark.parametrize(("ways", "sends"), [(2, 1 + 1 + 1), (4, 3 + 3 + 4)])
def test_the_bytes_of_a_ring_are_those_of_keys_values_and_their_gradients(ways, sends):
    asked = {"causal": False, **dict.fromkeys(("segments", "window", "softcap", "scale", "bias"))}
    given = AttentionInputs.create(*arrays(), **asked)
    keys_and_values = 2 * given.k.nbytes // ways
    assert ring_nbytes(given, ways) == sends * keys_and_values


@pytest.mark.slow
def test_a_ring_in_the_microbatches_of_a_pipeline_is_a_program():
    x = jax.ShapeDtypeStruct((2, 2, 32, 4, 8), jnp.float32)
    attend = partial(mw.nn.attention, causal=True, form="ring")
    with mw.parallel._internal.in_mesh(mw.make_mesh("pipeline=2,sequence=4")):
        side_by_side = jax.vmap(
            attend, axis_name=mw.parallel._internal.MICROBATCH, spmd_axis_name=mw.parallel._internal.PIPELINE
        )
        text = jax.jit(side_by_side).lower(x, x, x).as_text()
    assert 'manual_axes={"pipeline", "sequence"}' in text


# A user's model, which knows nothing of the axis: positions, a token shift and a causal convolution.


def init(key):
    e, w, c = jax.random.split(key, 3)
    return {
        "embedding": jax.random.normal(e, (32, 32)),
        "layers": jax.random.normal(w, (2, 32, 6 * 32)) / 6,
        "convolution": jax.random.normal(c, (3, 1, 32)) / 3,
    }


def loss(params, batch):
    x = params["embedding"][batch["tokens"]] + jnp.sin(jnp.arange(batch["tokens"].shape[1]))[:, None]
    x += 0.5 * jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0)))
    x += jax.lax.conv_general_dilated(
        x, params["convolution"], (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=32,
    )  # fmt: skip

    def layer(x, w):
        normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        q, k, v, gate = jnp.split(normed @ w, [32, 64, 96], axis=-1)
        q, k, v = (each.reshape(*x.shape[:2], 2, 16) for each in (q, k, v))
        seen = mw.nn.attention(q, k, v, causal=True, segments=batch.get("segments"))
        return x + seen.reshape(x.shape) + jax.nn.gelu(gate) @ w.T[: gate.shape[-1]] @ jnp.eye(32), None

    x, _ = jax.lax.scan(jax.checkpoint(layer), x, params["layers"])
    logits = x @ params["embedding"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    accuracy = (logits.argmax(-1) == batch["labels"]).astype(jnp.float32)
    return mw.Mean.of(losses, batch["weights"]), {"accuracy": mw.Mean.of(accuracy, batch["weights"])}


def trained(mesh, init, loss, batch):
    """Return the parameters and metrics after one update."""
    devices = jax.devices()[:1] if mesh == "data=1" else None
    layout = mw.Layout(mw.make_mesh(mesh, devices), (mw.parallel.fsdp(min_size=1),))
    state = mw.training.init_state(init, optax.sgd(0.1), 0, layout)
    state, metrics = mw.make_step(loss, optax.sgd(0.1), layout)(state, batch)
    return jax.tree.map(np.asarray, state.params), {
        name: float(x.total / x.count) for name, x in metrics.items()
    }


def batch_of(length, random):
    tokens = random.integers(1, 32, (4, length)).astype(np.int32)
    segments = np.sort(random.integers(1, 4, (4, length)), axis=1).astype(np.int32)
    return {"tokens": tokens, "segments": segments}


@pytest.mark.parametrize("is_packed", slow_first(True, False))
def test_a_model_that_knows_nothing_of_it_trains_as_on_one_device(is_packed):
    random = np.random.default_rng(0)
    batch = batch_of(32, random)
    batch |= {"labels": np.roll(batch["tokens"], -1, 1), "weights": random.random((4, 32)).astype(np.float32)}
    if not is_packed:
        del batch["segments"]
    whole, split = (trained(mesh, init, loss, batch) for mesh in ("data=1", "fsdp=2,sequence=4"))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), split, whole)


@pytest.mark.slow
def test_the_memory_of_a_step_falls_with_the_number_of_devices_that_split_its_rows():
    cfg = decoder.Config(model=128, layers=4, heads=8, feed_forward=344)

    def temporary_nbytes(ways):
        mesh = mw.make_mesh({"sequence": ways}, jax.devices()[:ways])
        layout = mw.Layout(mesh, (mw.parallel.fsdp(),))
        state = mw.training.abstract_state(partial(decoder.init, cfg), optax.sgd(1.0), layout)
        step = mw.make_step(partial(decoder.loss, cfg, remat="nothing"), optax.sgd(1.0), layout)
        rows = {"tokens": jax.ShapeDtypeStruct((1, 16_384 + 1), np.int32)}
        return step.compile(state, rows).memory_analysis().temp_size_in_bytes

    assert temporary_nbytes(1) / temporary_nbytes(8) >= 0.9 * 8


def test_the_axis_is_refused_for_a_model_without_attention():
    with pytest.raises(LayoutError, match="'sequence' of size 8 only repeats work"):
        trained("sequence=8", init, lambda params, batch: (params["embedding"] @ batch["x"].T).mean(),
                {"x": np.ones((8, 32), np.float32)})  # fmt: skip
