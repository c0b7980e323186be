"""The operation that made a value that is not finite is found, in calls, loops and branches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.debug import _level
from meshwright.debug._origin import Input, Origin, first_made, origin


def found(function, *arguments, names=()):
    jaxpr = jax.make_jaxpr(function)(*arguments)
    results = [(number, None) for number in range(len(jaxpr.jaxpr.outvars))]
    return origin(jaxpr, jax.tree.leaves(arguments), results, dict(names))


def loops(of):
    return [each.turn for each in of.around if each.turn is not None]


def weights(bad, layers=4):
    w = np.stack([np.eye(3, dtype=np.float32) * 3] * layers)
    w[bad] *= -1
    return jnp.asarray(w)


def network(w, x):
    return jax.lax.scan(lambda h, w: (jnp.log(h @ w), None), x, w)[0].sum()


ROWS = jnp.full((2, 3), 50.0)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint, jax.value_and_grad])
@pytest.mark.daily(2)
def test_the_layer_of_a_scan_is_its_iteration(transform):
    of = found(transform(network), weights(bad=2), ROWS, names={0: "params/w"})
    assert (of.eqn.primitive.name, loops(of), list(of.near)) == ("log", [2], ["params/w"])


def test_an_infinity_of_a_mask_is_harmless_and_not_blamed():
    mask = jnp.array([[True, True, False], [False, False, False]])

    def loss(x):
        return jax.nn.softmax(jnp.where(mask, x, -jnp.inf)).sum() + jnp.exp(jnp.log(0.0 * x[0, 0]))

    of = found(loss, jnp.ones((2, 3)))
    assert of.eqn.primitive.name == "sub"
    assert of.index[0] == 1
    assert isinstance(of.because, Input)


def test_a_branch_that_where_does_not_take_is_not_blamed_in_the_value():
    assert found(lambda x: jnp.where(x > 0, jnp.log(x), 0.0).sum(), jnp.array([1.0, -1.0])) is None


def test_the_infinity_that_became_nan_is_told():
    of = found(lambda x: (x * x - x * x * 2).sum(), jnp.array([1.0, 1e30]))
    assert (of.eqn.primitive.name, of.index, of.because.eqn.primitive.name) == ("sub", (1,), "mul")


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_an_overflow_of_a_narrow_dtype_is_one_though_a_wider_one_would_hold_it(dtype):
    large = 1e4 if dtype == jnp.float16 else 2e38
    of = found(lambda x: (x.astype(dtype) * x.astype(dtype)).astype(jnp.float32).sum(), jnp.array([large]))
    assert of.eqn.primitive.name == "mul"


def test_a_loop_is_followed_back_to_the_iteration_where_it_began():
    of = found(lambda x: jax.lax.fori_loop(0, 10, lambda i, c: c - c / (5 - i), x), jnp.float32(1))
    assert (of.eqn.primitive.name, loops(of)) == ("div", [5])
    grow = lambda x: jax.lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] * 1e30), (0, x))[1]
    of = found(grow, jnp.float32(1))
    assert (of.eqn.primitive.name, loops(of)) == ("mul", [1])


def test_branches_and_derivatives_of_ones_own_are_entered():
    of = found(lambda x: jax.lax.cond(x.sum() > 0, lambda x: jnp.log(-x), lambda x: x, x), jnp.ones(2))
    assert of.eqn.primitive.name == "log"
    ratio = jax.custom_vjp(lambda x: x * 2)
    ratio.defvjp(lambda x: (x * 2, x), lambda x, g: (g / x,))
    of = found(jax.grad(lambda x: ratio(x).sum()), jnp.array([1.0, 0.0]))
    assert (of.eqn.primitive.name, of.index) == ("div", (1,))
    assert "transpose" in str(of.eqn.source_info.name_stack)


def test_what_is_given_is_named_with_its_element():
    of = found(lambda x: jnp.sin(x.T).sum(), jnp.ones((2, 3)).at[1, 2].set(jnp.inf), names={0: "batch/x"})
    assert isinstance(of, Origin)  # the sine made NaN of it
    assert of.because == Input(0, (1, 2), np.float32(np.inf), "batch/x")


def test_values_that_take_too_much_memory_are_not_copied(monkeypatch):
    monkeypatch.setattr(_level, "_MOST_NBYTES", 8)
    of = found(network, weights(bad=1), ROWS)
    assert (of.eqn.primitive.name, loops(of)) == ("log", [1])


def test_a_nan_that_no_result_shows_is_found_forwards():
    jaxpr = jax.make_jaxpr(lambda x: jnp.where(jnp.isnan(jnp.log(x)), 0.0, x))(jnp.float32(-1))
    assert origin(jaxpr, [jnp.float32(-1)], [(0, None)]) is None
    of = first_made(jaxpr, [jnp.float32(-1)])
    assert isinstance(of, Origin)
    assert of.eqn.primitive.name == "log"
