"""What many arrays cost before the first step grows with their number, and not with its square."""

import re
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.training._guard import mean_plus_std, skip_exploding

LAYOUT = mw.Layout(mw.make_mesh("data=-1"))
BATCH = {"x": np.ones((8, 4), np.float32)}


def init(num_arrays: int):
    return lambda key: {f"layer{i}": {"kernel": jnp.eye(4)} for i in range(num_arrays)}


def loss(params, batch, key):
    x = batch["x"]
    for layer in params.values():
        x = x @ layer["kernel"]
    return jnp.mean(x)


def calls(function: Callable[[], object]) -> int:
    """Count the Python calls that a function makes."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


def traced(num_arrays: int) -> Callable[[], object]:
    tx = skip_exploding(optax.adam(0.1), mean_plus_std(6))
    state = mw.training.abstract_state(init(num_arrays), tx, LAYOUT)
    step = mw.make_step(loss, tx, LAYOUT, norms=".*")
    return lambda: step.trace(state, BATCH)


@pytest.mark.slow
def test_tracing_a_step_calls_functions_in_proportion_to_the_arrays():
    traced(10)()  # what is made once and kept is not counted
    few, many = (calls(traced(num_arrays)) for num_arrays in (20, 80))
    assert many < 5 * few


@pytest.mark.slow
def test_hundreds_of_gradients_are_added_up_in_few_sums_to_the_norm_of_all():
    params = {str(i): {"w": jnp.ones((2, 3)), "b": jnp.ones(3, jnp.bfloat16)} for i in range(70)}
    of_sums = lambda params, batch, key: 2 * sum(x.sum() for x in jax.tree.leaves(params))
    tx = optax.sgd(0.1)
    step = mw.make_step(of_sums, tx, LAYOUT)
    _, metrics = step(mw.training.state_from(params, tx, 0, LAYOUT), BATCH)
    assert metrics["grad_norm"].value == pytest.approx(np.sqrt(70 * 9 * 4))
    assert str(step.jaxpr).count(" reduce_sum[") - 140 <= 66  # 140 are the loss's


@pytest.mark.slow
def test_gradients_that_are_split_in_different_ways_are_not_exchanged_for_their_norm():
    rules = mw.parallel.match("q", None, "tensor"), mw.parallel.match("o", "tensor", None)
    layout, tx = mw.Layout(mw.make_mesh("tensor=8"), rules), optax.sgd(0.1)
    init = lambda key: {str(i): {"q": jnp.ones((8, 8)), "o": jnp.ones((8, 8))} for i in range(70)}
    of_sums = lambda params, batch, key: sum((x**2).sum() for x in jax.tree.leaves(params))
    compiled = mw.make_step(of_sums, tx, layout).compile(mw.training.abstract_state(init, tx, layout), BATCH)
    assert not re.findall("all-to-all|all-gather|collective-permute", compiled.as_text())


def test_the_patterns_of_a_thousand_rules_are_compiled_once_each():
    rules = (mw.parallel.match(mw.parallel.optional(f"unknown{i}"), "data") for i in range(1000))
    layout = mw.Layout(mw.make_mesh("data=8"), tuple(rules))
    compiled = []

    def count(frame, event, argument):
        if event == "call" and frame.f_globals.get("__name__") == "re._compiler":
            compiled.extend([frame.f_code.co_name] if frame.f_code.co_name == "compile" else [])

    sys.setprofile(count)
    try:
        layout.shardings(jax.eval_shape(init(3), jax.random.key(0)))
    finally:
        sys.setprofile(None)
    assert len(compiled) <= 1000
