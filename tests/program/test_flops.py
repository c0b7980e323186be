"""Operations counted on jaxprs, held to formulas worked out by hand."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.lm._models import decoder
from meshwright.program._flops import Product, flops

LAYERS, BATCH, D = 3, 2, 4
PRODUCT = 2 * BATCH * D * D
"""The operations of x @ w."""
x = jax.ShapeDtypeStruct((BATCH, D), jnp.float32)
w = jax.ShapeDtypeStruct((D, D), jnp.float32)
stacked = jax.ShapeDtypeStruct((LAYERS, D, D), jnp.float32)


def layer(x, w):
    return jnp.sin(x @ w)


def scanned(layer, x, stacked):
    return jax.lax.scan(lambda x, w: (layer(x, w), None), x, stacked)[0]


def value_and_grads(function):
    return jax.value_and_grad(lambda *arguments: function(*arguments).sum(), argnums=(0, 1))


def test_a_matrix_product_takes_a_multiplication_and_an_addition_for_each_pair():
    assert flops(jnp.matmul, x, w).model == PRODUCT


def test_elementwise_work_is_left_out():
    assert flops(lambda x: jnp.exp(x).sum(), x).hardware == 0


def test_a_batched_product_counts_for_each_of_the_batch():
    left, right = jnp.ones((5, 2, 3, 4)), jnp.ones((4, 5, 7, 3))
    assert flops(functools.partial(jnp.einsum, "bhij,jbki->bhk"), left, right).model == 2 * 5 * 2 * 3 * 4 * 7


def test_kinds_and_dtypes_are_told_apart():
    def mixed(x, w):
        return (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32) @ w

    dot = functools.partial(Product, "dot", recomputed=False)
    assert flops(mixed, x, w).products == {dot("bfloat16"): PRODUCT, dot("float32"): PRODUCT}


def test_a_scanned_layer_counts_for_each_turn():
    assert flops(functools.partial(scanned, layer), x, stacked).model == LAYERS * PRODUCT


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_a_gradient_costs_three_times_as_much_and_rematerialised_four_times(policy):
    rematerialised = functools.partial(scanned, jax.checkpoint(layer, policy=policy))
    plain = flops(value_and_grads(functools.partial(scanned, layer)), x, stacked)
    again = flops(value_and_grads(rematerialised), x, stacked)
    assert plain.model == plain.hardware == again.model == 3 * LAYERS * PRODUCT
    assert again.hardware == (4 if policy is None else 3) * LAYERS * PRODUCT


def test_all_that_is_rematerialised_twice_counts_twice():
    whole = jax.checkpoint(functools.partial(scanned, jax.checkpoint(layer)))
    found = flops(value_and_grads(whole), x, stacked)
    assert (found.model, found.hardware) == (3 * LAYERS * PRODUCT, 5 * LAYERS * PRODUCT)


def test_outputs_of_what_is_rematerialised_need_not_be_computed_again():
    linear = jax.checkpoint(lambda x, w: jnp.sin(x @ w) @ w)
    assert flops(value_and_grads(linear), x, w).hardware == 7 * PRODUCT


def test_rows_of_which_some_are_said_to_be_unused_cost_as_the_others():
    def objective(x, w):
        with jax.named_scope("used_1_of_2_rows"):
            return jnp.sin(x @ w)

    assert flops(value_and_grads(objective), x, w).model == 3 * PRODUCT / 2


def test_a_branch_that_is_said_to_be_seldom_taken_does_not_count_nor_does_its_gradient():
    def objective(x, w):
        with jax.named_scope("seldom"):
            more = jax.lax.cond(x.sum() > 0, lambda: jnp.sin(x @ w), lambda: jnp.zeros_like(x))
        return more + x @ w

    assert flops(value_and_grads(objective), x, w).model == 3 * PRODUCT


def test_of_branches_the_one_with_most_work_counts():
    def branching(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: layer(layer(x, w), w), lambda: x)

    assert flops(branching, x, w).model == 2 * PRODUCT


def test_a_loop_that_is_over_when_it_is_over_counts_once_and_is_told():
    def looping(x, w):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: layer(x, w), x)

    found = flops(looping, x, w)
    assert (found.model, found.open_loops) == (PRODUCT, 1)
    counted = flops(lambda x, w: jax.lax.fori_loop(0, 5, lambda _, x: layer(x, w), x), x, w)
    assert (counted.model, counted.open_loops) == (5 * PRODUCT, 0)


def test_functions_with_derivatives_of_their_own_and_compiled_ones_count():
    @jax.custom_vjp
    def given(x, w):
        return x @ w

    given.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, out: (out @ kept[1].T, kept[0].T @ out))
    assert flops(jax.jit(given), x, w).model == PRODUCT
    assert flops(value_and_grads(jax.jit(given)), x, w).model == 3 * PRODUCT
    assert flops(jax.nn.relu, x).model == 0


@pytest.mark.parametrize(
    ("axes", "columns", "times"),
    [({"data"}, None, 1), ({"data", "tensor"}, "tensor", 1), ({"data", "tensor"}, None, 2)],
)
def test_what_is_mapped_counts_on_every_device_of_the_axes(axes, columns, times):
    mesh = mw.make_mesh("data=2,tensor=2", jax.devices()[:4])
    specs = {"in_specs": (P("data"), P(None, columns)), "out_specs": P("data", columns)}
    mapped = jax.shard_map(jnp.matmul, mesh=mesh, axis_names=axes, check_vma=False, **specs)
    assert flops(mapped, x, w).model == times * PRODUCT


def test_what_nothing_reads_is_not_computed():
    assert flops(lambda x, w: (x @ w, layer(x, w).sum())[0], x, w).model == PRODUCT


def test_what_nothing_reads_of_a_call_or_of_a_loop_is_not_computed():
    called = jax.jit(lambda x, w: (x @ w, layer(x, w)))
    assert flops(lambda x, w: called(x, w)[0], x, w).model == PRODUCT

    def looping(x, stacked):
        return jax.lax.scan(lambda x, w: (jnp.sin(x), x @ w), x, stacked)[0]

    assert flops(looping, x, stacked).model == 0


def test_rows_of_many_experts_cost_as_with_one_and_so_do_the_gradients():
    rows, experts = jnp.ones((12, 4)), jnp.ones((3, 4, 5))
    sizes = jnp.array([4, 6, 2])

    def routed(rows, experts):
        return jnp.sin(jax.lax.ragged_dot(rows, experts, sizes))

    assert flops(routed, rows, experts).model == 2 * 12 * 4 * 5
    assert flops(value_and_grads(routed), rows, experts).model == 3 * 2 * 12 * 4 * 5


def test_rows_that_fill_blocks_of_an_expert_do_not_count():
    rows, experts, logits = jnp.ones((24, 4)), jnp.ones((3, 4, 5)), jnp.zeros((24, 3))

    def mixed(rows, experts):
        return mw.nn.moe(lambda w, rows, dot: jnp.sin(dot(rows, w)), experts, rows, logits, top_k=2)[0]

    assert flops(mixed, rows, experts).model == 2 * 2 * 24 * 4 * 5
    assert flops(value_and_grads(mixed), rows, experts).model == 3 * 2 * 2 * 24 * 4 * 5


def test_kernels_of_unknown_work_are_named():
    from jax.experimental import pallas

    def copied(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    kernel = pallas.pallas_call(copied, out_shape=x)
    found = flops(
        lambda x, stacked: (scanned(layer, kernel(x), stacked), jnp.linalg.cholesky(x @ x.T)), x, stacked
    )
    assert found.not_counted == {"pallas_call": 1, "cholesky": 1}
    assert found.model == LAYERS * PRODUCT + 2 * BATCH * BATCH * D


def test_solving_a_linear_system_does_not_count_what_only_its_gradient_does():
    assert set(flops(jnp.linalg.solve, w, w).not_counted) == {"lu", "triangular_solve"}
    assert flops(jnp.linalg.solve, w, w).model == 0


def test_a_transformer_takes_six_operations_a_parameter_and_token_and_its_attention():
    cfg, batch, length = decoder.Config(), 4, 64

    def loss(params, tokens):
        logits = decoder.logits(cfg, params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    params = jax.eval_shape(functools.partial(decoder.init, cfg), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((batch, length + 1), jnp.int32)
    num_params = sum(p.size for p in jax.tree.leaves(params)) - params["embedding"].size  # which is looked up
    attention = 3 * 4 * cfg.layers * batch * length**2 * cfg.model
    expected = 6 * num_params * batch * length + attention
    found = flops(jax.value_and_grad(loss), params, tokens)
    assert found.model == found.hardware == pytest.approx(expected, rel=0.02)
