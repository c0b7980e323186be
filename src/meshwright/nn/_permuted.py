"""Rows moved to places and back, each way by lookups, and so are their gradients.

The gradient of a lookup adds rows to the ones that they came from, in no order that one could count on. But
each choice has one place at most. So the gradient of the way to the places is the way back, and the gradient
of the way back that to the places.

Shapes: m tokens of d features with k choices each, c = m × k choices, n places.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Places(NamedTuple):
    """Which choice is in each place, and where each choice is."""

    choices: jax.Array
    """int32[n], the choice in each place; c or more for none."""
    places: jax.Array
    """int32[c], the place of each choice; n or more for none."""


@jax.custom_vjp
def taken(x: jax.Array, places: Places) -> jax.Array:
    """Return the tokens, [m, d], of the choices in the places, [n, d].

    Where there is no choice they are 1: a norm of zeros would be 0 / 0.
    """
    return _taken(x, places, 1)


@jax.custom_vjp
def returned(rows: jax.Array, weights: jax.Array, places: Places) -> jax.Array:
    """Return the weighted sums of what the choices of each token found, [m, d].

    Args:
      rows: [n, d], what was found in the places.
      weights: [m, k]. A choice that has no place counts for nothing.
      places: The places.
    """
    of_choices = _of_choices(rows, weights, places).astype(weights.dtype)
    return (of_choices * weights[..., None]).sum(1).astype(rows.dtype)


def _taken(x: jax.Array, places: Places, otherwise: int) -> jax.Array:
    k = places.places.shape[0] // x.shape[0]
    return x.at[places.choices // k].get(mode="fill", fill_value=otherwise)


def _of_choices(rows: jax.Array, weights: jax.Array, places: Places) -> jax.Array:
    found = rows.at[places.places].get(mode="fill", fill_value=0)
    return found.reshape(*weights.shape, rows.shape[-1])


def _taken_forward(x: jax.Array, places: Places) -> tuple[jax.Array, Any]:
    return taken(x, places), (x, places)


def _taken_backward(of: Any, change: jax.Array) -> tuple[Any, ...]:
    x, places = of
    ones = jnp.ones(
        (x.shape[0], places.places.shape[0] // x.shape[0]), jnp.promote_types(x.dtype, jnp.float32)
    )
    return returned(change, ones, places).astype(x.dtype), None


def _returned_forward(*of: Any) -> tuple[jax.Array, Any]:
    return returned(*of), of


def _returned_backward(of: Any, change: jax.Array) -> tuple[Any, ...]:
    rows, weights, places = of
    own = weights.reshape(-1).at[places.choices].get(mode="fill", fill_value=0)
    d_rows = _taken(change, places, 0).astype(weights.dtype) * own[:, None]
    found = _of_choices(rows, weights, places).astype(weights.dtype)
    d_weights = (found * change[:, None].astype(weights.dtype)).sum(-1)
    return d_rows.astype(rows.dtype), d_weights.astype(weights.dtype), None


taken.defvjp(_taken_forward, _taken_backward)
returned.defvjp(_returned_forward, _returned_backward)
