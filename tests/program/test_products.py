"""Convolutions and attention: what they cost, forward and backward, beside formulas and XLA's own count."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import Primitive

from meshwright.program._flops import flops


def test_a_convolution_multiplies_each_output_with_each_weight_that_leads_to_it():
    convolved = functools.partial(jax.lax.conv, window_strides=(1, 1), padding="VALID")
    image, kernel = jnp.zeros((2, 3, 8, 9)), jnp.zeros((5, 3, 3, 3))
    assert flops(convolved, image, kernel).model == 2 * (2 * 5 * 6 * 7) * (3 * 3 * 3)


def test_padding_is_not_multiplied():
    convolved = functools.partial(jax.lax.conv, window_strides=(1,), padding="SAME")
    assert flops(convolved, jnp.zeros((1, 1, 8)), jnp.zeros((1, 1, 3))).model == 2 * (8 * 3 - 2)


def test_a_depthwise_convolution_has_one_channel_for_each_output():
    convolved = functools.partial(
        jax.lax.conv_general_dilated, window_strides=(1, 1), padding="VALID", feature_group_count=4,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    image, kernel = jnp.zeros((2, 8, 8, 4)), jnp.zeros((3, 3, 1, 4))
    assert flops(convolved, image, kernel).model == 2 * (2 * 6 * 6 * 4) * (3 * 3)


def layout(*letters):
    return st.permutations(letters).map("".join)


@st.composite
def convolutions(draw):
    """Return a convolution, an image and a kernel: any layout, groups, strides, padding and dilation."""
    some = functools.partial(st.integers, 1)
    groups, by_batch = draw(some(3)), draw(st.booleans())
    numbers = draw(st.tuples(layout(*"NCHW"), layout(*"OIHW"), layout(*"NCHW")))
    image = {"N": groups * draw(some(2)), "C": groups * draw(some(2)), "H": draw(some(9)), "W": draw(some(6))}
    channels = image["C"] if by_batch else image["C"] // groups
    kernel = {"O": groups * draw(some(2)), "I": channels, "H": draw(some(3)), "W": 2}
    convolved = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(draw(some(3)), 1),
        padding=[(draw(some(6)), draw(some(6))), (2, 0)],
        lhs_dilation=(draw(some(3)), 1),
        rhs_dilation=(draw(some(3)), draw(some(2))),
        dimension_numbers=numbers,
        **{"batch_group_count" if by_batch else "feature_group_count": groups},
    )
    shapes = ([sizes[d] for d in order] for sizes, order in zip((image, kernel), numbers, strict=False))
    return convolved, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


@given(convolutions())
def test_any_convolution_costs_what_xla_says_and_each_of_its_gradients_as_much(drawn):
    convolved, image, kernel = drawn

    def gradients(image, kernel, out):
        return jax.vjp(convolved, image, kernel)[1](out)

    found = flops(convolved, image, kernel).model
    assert found == jax.jit(convolved).lower(image, kernel).cost_analysis().get("flops", 0)
    assert flops(gradients, image, kernel, jax.eval_shape(convolved, image, kernel)).model == 2 * found


BATCH, TIME, SOURCE, HEADS, HEAD = 2, 8, 6, 4, 16
QUERY, KEY = (BATCH, TIME, HEADS, HEAD), (BATCH, SOURCE, HEADS, HEAD)
ONE = 2 * BATCH * TIME * SOURCE * HEADS * HEAD
"""One of the two products of attention."""


def test_attention_is_two_products_and_its_gradient_four():
    def attended(query, key, value):
        return jax.nn.dot_product_attention(query, key, value, implementation="xla")

    query, key = jnp.zeros(QUERY), jnp.zeros(KEY)

    def with_gradients(*operands):
        mixed, gradients = jax.vjp(attended, *operands)
        return mixed, gradients(mixed)

    assert flops(attended, query, key, key).model == 2 * ONE
    assert flops(with_gradients, query, key, key).model == 6 * ONE


def cudnn(name, num_outputs, *, heads_first):
    """What `jax.nn.dot_product_attention` becomes on a GPU, by the name of its primitive there."""
    primitive = Primitive(f"dot_product_attention_{name}_wrapper")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *avals, layout: list(avals[:num_outputs]))
    return lambda *operands: primitive.bind(*operands, layout=int(heads_first))


@pytest.mark.parametrize("heads_first", [True, False])
def test_attention_of_cudnn_costs_the_same_but_its_gradient_makes_the_weights_again(heads_first):
    query, key = (
        jnp.zeros([shape[d] for d in (0, 2, 1, 3)] if heads_first else shape, jnp.bfloat16)
        for shape in (QUERY, KEY)
    )
    forward = flops(cudnn("fwd", 1, heads_first=heads_first), query, key, key)
    backward = flops(cudnn("bwd", 3, heads_first=heads_first), query, key, key)
    assert forward.products == {("attention", "bfloat16", False): 2 * ONE}
    assert (backward.model, backward.hardware) == (4 * ONE, 5 * ONE)
