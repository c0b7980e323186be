"""What small steps take, by hand; larger ones, as compiled for CPUs and H100s; and what never changes it."""

from collections import Counter

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.plan._estimate._traced import traced_costs
from meshwright.program._flops import count_flops
from meshwright.program._hlo._collectives import collectives
from meshwright.training._step import Step
from plan.steps import F32, GIB, abstract, costs, decoder_costs, descent, layers, layout_of, sent, traced


def test_weights_split_as_the_batch_is_are_gathered():
    found = costs(
        lambda s, x: jnp.tanh(x @ s["w"]).sum(), {"w": ((32, 64), P("fsdp"))}, (128, 32), {"fsdp": 4}
    )
    assert sent(found.collectives) == {("all-gather", ("fsdp",)): 32 * 64 * F32 * 3 // 4}


def test_weights_are_gathered_however_few_the_examples():
    """As XLA has it: to send the examples around would be less."""
    found = costs(lambda s, x: jnp.tanh(x @ s["w"]).sum(), {"w": ((32, 64), P("fsdp"))}, (4, 32), {"fsdp": 4})
    assert sent(found.collectives) == {("all-gather", ("fsdp",)): 32 * 64 * F32 * 3 // 4}


def test_products_over_a_split_dimension_are_summed():
    weights = {"in": ((32, 64), P(None, "tensor")), "out": ((64, 32), P("tensor"))}
    found = costs(lambda s, x: jnp.tanh(x @ s["in"] @ s["out"]).sum(), weights, (8, 32), {"tensor": 4})
    assert sent(found.collectives) == {("all-reduce", ("tensor",)): 2 * 8 * 32 * F32 * 3 // 4}


def test_two_sums_that_are_added_are_made_at_once():
    weights = {name: ((64, 32), P("tensor")) for name in "ab"}
    found = costs(lambda s, x: jnp.tanh(x @ s["a"] + x @ s["b"]).sum(), weights, (8, 64), {"tensor": 4})
    assert sent(found.collectives) == {("all-reduce", ("tensor",)): 2 * 8 * 32 * F32 * 3 // 4}


def test_gradients_are_summed_over_the_examples():
    found = descent(lambda p, x: (x @ p["w"]).mean(), {"w": ((32, 64), P())}, (64, 32), {"data": 8})
    assert sent(found.collectives) == {("all-reduce", ("data",)): 2 * 32 * 64 * F32 * 7 // 8}


def test_gradients_of_split_weights_are_scattered_as_these_are():
    loss = lambda p, x: jnp.tanh(x @ p["w"]).mean()
    found = descent(loss, {"w": ((32, 64), P("fsdp"))}, (64, 32), {"data": 2, "fsdp": 4})
    weight = 32 * 64 * F32
    assert sent(found.collectives) == {
        ("all-gather", ("fsdp",)): weight * 3 // 4,
        ("reduce-scatter", ("fsdp",)): weight * 3 // 4,
        ("all-reduce", ("data",)): weight // 4 * 2 // 2,
    }


def test_examples_stay_split_by_example_where_positions_are_split_by_feature():
    """Axes spread through operations of equal shapes before positions are repeated for each example."""

    def embedded(state, x):
        return jnp.tanh(jnp.tanh((x @ state["w"]).reshape(32, 4, 16) + state["positions"]) @ state["w"]).sum()

    weights = {"w": ((16, 16), P()), "positions": ((4, 16), P(None, "fsdp"))}
    found = costs(embedded, weights, (128, 16), {"fsdp": 4})
    assert sent(found.collectives) == {("all-gather", ("fsdp",)): 4 * 16 * F32 * 3 // 4}


def ragged(ragged_kernel):
    """A product of 64 rows with four experts; devices split both."""
    layout = layout_of({"expert": 4})
    product = lambda s, x: jnp.tanh(jax.lax.ragged_dot(x, s["w"], jnp.full(4, 16))).sum()
    step = Step(lambda state, x: (state, {"y": product(state, x)}), layout)
    state = abstract({"w": ((4, 32, 128), P("expert"))}, layout)
    jaxpr = step.trace(state, jax.ShapeDtypeStruct((64, 32), jnp.float32)).jaxpr
    return traced_costs(jaxpr, state, layout, ragged_kernel=ragged_kernel)


def test_experts_of_a_ragged_product_are_gathered():
    assert sent(ragged(ragged_kernel=True).collectives) == {
        ("all-gather", ("expert",)): 4 * 32 * 128 * F32 * 3 // 4
    }


def test_rows_of_a_ragged_product_are_written_for_each_expert_where_there_is_no_kernel():
    peaks = [ragged(ragged_kernel=has).memory.peak for has in (False, True)]
    assert peaks[0] - peaks[1] == 4 * (64 // 4) * 32 * F32


def test_each_row_is_multiplied_by_all_experts_where_there_is_no_kernel():
    work = [sum(x.flops for x in ragged(ragged_kernel=has).products) for has in (False, True)]
    assert work[0] == 4 * work[1]


def test_rows_that_fill_blocks_take_time_where_there_is_no_kernel():
    def step(state, x):
        with jax.named_scope("used_3_of_4_rows"):
            return state, {"y": jnp.tanh(x @ state["w"]).sum()}

    layout = layout_of({"data": 1})
    state = abstract({"w": ((32, 32), P())}, layout)
    jaxpr = Step(step, layout).trace(state, jax.ShapeDtypeStruct((64, 32), jnp.float32)).jaxpr
    work = [
        sum(x.flops for x in traced_costs(jaxpr, state, layout, ragged_kernel=has).products)
        for has in (False, True)
    ]
    assert work == [2 * 64 * 32 * 32, 3 / 4 * 2 * 64 * 32 * 32]


def test_a_lookup_passes_the_rows_that_it_finds_and_not_the_table():
    def found(num_rows):
        looked_up = lambda s, x: jnp.tanh(s["table"][x.astype(int)]).sum()
        return costs(looked_up, {"table": ((num_rows, 32), P())}, (16,), {"data": 1}).other_nbytes

    assert found(128) == found(1024)


def mixed(ways):
    """A mixture of 8 experts over 128 tokens of 32 features, two experts for each."""
    block = lambda w, rows, dot: dot(rows, w)
    mix = lambda s, x: mw.nn.moe(block, s["w"], x, x[:, :8], top_k=2)[0].sum()
    return sent(costs(mix, {"w": ((8, 32, 32), P("expert"))}, (128, 32), {"expert": ways}).collectives)


def test_choices_go_to_their_experts_and_back_with_room_for_a_quarter_more():
    room = 5  # 1.25 × two choices of 16 tokens / 8 devices
    assert mixed(8)["all-to-all", ("expert",)] == 7 * room * (2 * 32 + 1) * F32  # and the expert's number


def test_tokens_visit_the_other_device_and_only_results_come_back():
    assert mixed(2)["collective-permute", ("expert",)] == 64 * (2 * 32 + 2 + 2) * F32


def test_layers_are_gathered_one_after_the_other():
    found = costs(layers, {"w": ((5, 16, 16), P(None, "fsdp"))}, (64, 16), {"fsdp": 4})
    gathers = [x for x in found.collectives if x.kind == "all-gather"]
    assert [(x.times, x.nbytes) for x in gathers] == [(5, 16 * 16 * F32)]


def test_gradients_of_microbatches_are_summed_once_over_all_of_them():
    shapes = {"w": ((32, 64), P())}
    loss = lambda p, x: (x @ p["w"]).mean()
    one = descent(loss, shapes, (64, 32), {"data": 8})
    four = descent(loss, shapes, (64, 32), {"data": 8}, microbatches=4)
    assert sent(four.collectives) == sent(one.collectives)


def test_rows_of_a_table_split_by_row_are_looked_up_where_they_are():
    table = {"table": ((128, 32), P("tensor"))}
    found = costs(lambda s, x: jnp.tanh(s["table"][x.astype(int)]).sum(), table, (16,), {"tensor": 8})
    assert sent(found.collectives) == {("all-reduce", ("tensor",)): 2 * 16 * 32 * F32 * 7 // 8}


def test_a_constraint_that_moves_an_axis_exchanges_all_with_all():
    def moved(state, x):
        return jnp.tanh(jax.lax.with_sharding_constraint(x, P(None, "data"))).sum()

    found = costs(moved, {}, (64, 32), {"data": 8})
    assert sent(found.collectives) == {("all-to-all", ("data",)): 64 * 32 * F32 // 8 * 7 // 8}


def test_what_a_program_exchanges_itself_is_counted():
    layout = layout_of({"data": 8})
    total = jax.shard_map(
        lambda x: jax.lax.psum(x, "data"), mesh=layout.mesh, in_specs=P("data"), out_specs=P()
    )
    found = costs(lambda state, x: total(x).sum(), {}, (64, 32), {"data": 8})
    assert sent(found.collectives) == {("all-reduce", ("data",)): 2 * 8 * 32 * F32 * 7 // 8}


def test_what_it_exchanges_itself_is_no_operation_that_is_not_known():
    layout = layout_of({"fsdp": 4, "tensor": 2})

    def gathered(axes):
        whole = lambda w: jax.lax.all_gather(w, "fsdp", tiled=True)
        manual = jax.shard_map(
            whole, mesh=layout.mesh, in_specs=P("fsdp"), out_specs=P(), axis_names=axes, check_vma=False
        )
        weights = {"w": ((32, 64), P("fsdp")), "other": ((64,), P("tensor"))}
        return costs(lambda s, x: (x @ manual(s["w"])).sum(), weights, (64, 32), {"fsdp": 4, "tensor": 2})

    whole, partly = gathered({"fsdp", "tensor"}), gathered({"fsdp"})
    assert whole.not_understood == partly.not_understood == ()
    assert sent(whole.collectives)["all-gather", ("fsdp",)] == 32 * 64 * F32 * 3 // 4
    assert sent(partly.collectives) == sent(whole.collectives)


def test_keys_and_values_are_sent_round_a_ring_and_their_gradients_home():
    def attended(state, x):
        q = (x @ state["w"]).reshape(4, 64, 4, 16)
        return mw.nn.attention(q, q, q, form="ring").sum()

    found = descent(attended, {"w": ((64, 64), P())}, (4, 64, 64), {"data": 2, "sequence": 4})
    part = 2 * 2 * (64 // 4) * 64 * F32  # keys and values of two rows
    exchanged = sent(found.collectives)
    assert exchanged.pop(("collective-permute", ("sequence",))) == (3 + 3 + 4) * part
    assert exchanged == {("all-reduce", ("data", "sequence")): 2 * 64 * 64 * F32 * 7 // 8}


def test_stages_send_microbatches_to_their_neighbours():
    def piped(params, x):
        return mw.nn.layers(lambda w, x: jnp.tanh(x @ w), params["w"], x).mean()

    weights = {"w": ((8, 64, 64), P("pipeline"))}
    found = descent(piped, weights, (32, 64), {"pipeline": 4, "data": 2}, microbatches=8)
    part = 32 // 8 // 2 * 64 * F32  # of one microbatch on one device
    # 11 ticks with the place and the queue beside it, 3 to turn the ring back, and all again in the gradient.
    assert sent(found.collectives)["collective-permute", ("pipeline",)] == 2 * 2 * (11 + 3) * part


def test_gradients_of_depthwise_kernels_are_summed_over_the_examples():
    def loss(params, x):
        images, numbers = x.reshape(8, 8, 8, 16), ("NHWC", "HWIO", "NHWC")
        return jnp.sin(
            jax.lax.conv_general_dilated(
                images, params["k"], (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=16
            )
        ).mean()

    found = descent(loss, {"k": ((3, 3, 1, 32), P())}, (8, 1024), {"data": 8})
    assert sent(found.collectives) == {("all-reduce", ("data",)): 2 * 3 * 3 * 32 * F32 * 7 // 8}


def test_of_the_branches_of_a_condition_the_one_that_exchanges_most_counts():
    def chosen(state, x):
        y = jax.lax.cond(state["c"] > 0, lambda x: x @ state["w"], lambda x: jnp.zeros((8, 32)), x)
        return jnp.tanh(y).sum()

    shapes = {"c": ((), P()), "w": ((64, 32), P("tensor"))}
    found = costs(chosen, shapes, (8, 64), {"tensor": 4})
    assert sent(found.collectives) == {("all-reduce", ("tensor",)): 2 * 8 * 32 * F32 * 3 // 4}


def test_attention_of_cudnn_is_done_where_batch_and_heads_are():
    fused = Primitive("dot_product_attention_fwd_wrapper")
    fused.def_abstract_eval(lambda q, *_, layout: q)

    def attended(state, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x.reshape(8, 16, 32), state[name]) for name in "qkv")
        return jnp.tanh(fused.bind(q, k, v, layout=0)).sum()

    by_heads = P(None, "tensor")
    shapes = {"q": ((32, 8, 16), by_heads), "k": ((32, 4, 16), by_heads), "v": ((32, 4, 16), by_heads)}
    found = costs(attended, shapes, (8, 512), {"data": 2, "tensor": 4})
    assert (sent(found.collectives), found.not_understood) == ({}, ())
    assert found.products[-1].flops == 2 * (2 * 8 * 16 * 16 * 8 * 16) / 8


def test_attention_in_blocks_counts_as_one_kernel_forward_and_back():
    def attended(state, x):
        q = (x @ state["w"]).reshape(8, 1024, 2, 16)
        return mw.nn.attention(q, q, q, causal=True).sum()

    found = descent(attended, {"w": ((32, 32), P())}, (8, 1024, 32), {"data": 4})
    flops = sum(x.flops * x.times for x in found.products if x.is_attention)
    # Seven products of 512 queries and 512 keys for 2 of 8 rows, in three of four pairs of blocks.
    assert flops == 7 * 3 * 2 * (2 * 2 * 512 * 512 * 16)
    assert found.attention_nbytes > 3 * 2 * 2 * 512 * 512 * F32


def test_one_device_exchanges_nothing():
    found = descent(layers, {"w": ((5, 16, 16), P(None, "fsdp"))}, (64, 16), {"data": 1, "fsdp": 1})
    assert not found.collectives


@pytest.mark.parametrize("extra", ["data", "tensor"])
def test_an_axis_of_size_one_changes_nothing(extra):
    shapes = {"w": ((5, 16, 16), P(None, "fsdp"))}
    assert descent(layers, shapes, (64, 16), {"fsdp": 8}) == descent(
        layers, shapes, (64, 16), {"fsdp": 8, extra: 1}
    )


def test_devices_share_the_operations():
    layout = layout_of({"fsdp": 4, "tensor": 2})
    state = abstract({"w": ((5, 16, 16), P(None, "fsdp", "tensor"))}, layout)
    step = Step(lambda state, x: (state, {"y": layers(state, x)}), layout)
    found = traced(step, state, (64, 16), layout)
    assert sum(8 * x.flops * x.times for x in found.products) == count_flops(step.jaxpr).hardware


def test_operations_that_are_not_known_are_named():
    def pooled(state, x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID").sum()

    best = lambda state, x: jax.lax.top_k(x, 4)[0].sum()
    assert costs(pooled, {}, (64, 16), {"data": 4}).not_understood == ("reduce_window_max",)
    assert costs(best, {}, (64, 16), {"data": 4}).not_understood == ()


def test_a_decoder_exchanges_what_it_does_when_compiled_for_h100s():
    """XLA of JAX 0.10.2, for 256 H100s, in GiB: gathers 6.303 over fsdp and 2.273 over tensor, and so on."""
    found = sent(decoder_costs({"fsdp": 64, "tensor": 4}, 64, "nothing").collectives)
    assert found["all-gather", ("fsdp",)] / GIB == pytest.approx(6.3033, rel=0.05)
    assert found["reduce-scatter", ("fsdp",)] / GIB == pytest.approx(3.1488, rel=1e-3)
    assert found["all-gather", ("tensor",)] / GIB == pytest.approx(2.2734, rel=1e-3)
    assert found["reduce-scatter", ("tensor",)] / GIB == pytest.approx(1.8867, rel=0.01)
    assert found["all-reduce", ("tensor",)] / GIB < 0.1


def residual(params, batch):
    """Layers split as in Megatron-LM: columns in, rows out, so that a block ends in a sum."""

    def layer(x, weights):
        x = x + jnp.sin(x @ weights["in"]) @ weights["out"]
        return jax.lax.with_sharding_constraint(x, P(("data", "fsdp"))), None

    layers = {"in": params["in"], "out": params["out"]}
    return jax.lax.scan(layer, batch @ params["first"], layers)[0].mean()


SHAPES = {"first": (32, 64), "in": (3, 64, 128), "out": (3, 128, 64)}
RULES = (
    mw.parallel.match("first", None, "fsdp"),
    mw.parallel.match("in", None, "fsdp", "tensor"),
    mw.parallel.match("out", None, "tensor", "fsdp"),
)


def by_axes(found):
    """Bytes that a device sends, by axes: XLA writes a reduce-scatter as an all-reduce for CPUs."""
    total = Counter()
    for each in found:
        if each.nbytes > 64:
            total[each.axes] += each.times * each.sent_nbytes * (2 if each.kind == "reduce-scatter" else 1)
    return total


@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1), (2, 1, 4), (1, 4, 2)], ids=str)
@pytest.mark.daily(2)
def test_axes_carry_the_bytes_that_they_do_when_compiled_for_cpus(sizes):
    mesh = mw.make_mesh(dict(zip(("data", "fsdp", "tensor"), sizes, strict=True)))
    layout = mw.Layout(mesh, rules=RULES)
    tx = optax.sgd(0.1)
    state = mw.training.abstract_state(lambda key: {x: jnp.zeros(SHAPES[x]) for x in SHAPES}, tx, layout)
    step = mw.make_step(lambda params, batch, key: residual(params, batch), tx, layout)
    compiled = step.compile(state, jax.ShapeDtypeStruct((64, 32), jnp.float32))
    mine, theirs = traced_costs(step.jaxpr, state, layout).collectives, collectives(compiled.as_text(), mesh)
    assert by_axes(mine) == pytest.approx(by_axes(theirs), abs=64)  # scalars are sent along with arrays
