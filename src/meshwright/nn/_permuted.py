"""Rows moved to places and back by lookups, whose gradients are lookups, too.

The gradient of any lookup adds rows to those that they came from, in an order that may change. But each
choice has one place at most. So the gradient of the way to the places is the way back, and the other way
round.

Shapes: m tokens of d features with k choices each, c = m × k choices, n places.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Choices(NamedTuple):
    """Choices, sorted by what was chosen."""

    ids: jax.Array
    """int32[c], the number of what each chose; e for nothing."""
    order: jax.Array
    """int32[c], the choices in their order."""
    places: jax.Array
    """int32[c], the place of each choice in the order."""
    counts: jax.Array
    """int32[e], the number of choices of each."""

    @classmethod
    def of(cls, ids: jax.Array, e: int) -> "Choices":
        """Return the choices that have these numbers, below e."""
        order = jnp.argsort(ids, stable=True)
        counts = (ids[:, None] == jnp.arange(e)).sum(0, dtype=jnp.int32)
        return cls(ids, order, jnp.argsort(order), counts)


class Places(NamedTuple):
    """Which choice is in each place, and where each choice is."""

    choices: jax.Array
    """int32[n], the choice in each place; c or more for none."""
    places: jax.Array
    """int32[c], the place of each choice; n or more for none."""


@jax.custom_vjp
def taken(x: jax.Array, places: Places) -> jax.Array:
    """Return the tokens, [m, d], of the choices in the places, [n, d].

    Where there is no choice it is the last token: a row of zeros might give what is no number.
    """
    return x.at[places.choices // _num_choices(x, places)].get(mode="clip")


@jax.custom_vjp
def returned(rows: jax.Array, weights: jax.Array, places: Places) -> jax.Array:
    """Return the weighted sums of what the choices of each token found, [m, d]."""
    return (_of_choices(rows, weights, places) * weights[..., None]).sum(1).astype(rows.dtype)


def _num_choices(x: jax.Array, places: Places) -> int:
    return places.places.shape[0] // x.shape[0]


def _of_choices(rows: jax.Array, weights: jax.Array, places: Places) -> jax.Array:
    found = rows.at[places.places].get(mode="fill", fill_value=0)
    dtype = jnp.promote_types(rows.dtype, weights.dtype)
    return found.reshape(*weights.shape, rows.shape[-1]).astype(dtype)


def _taken_forward(x: jax.Array, places: Places) -> tuple[jax.Array, Any]:
    return taken(x, places), (x, places)


def _taken_backward(of: Any, change: jax.Array) -> tuple[Any, ...]:
    x, places = of
    wide = jnp.promote_types(x.real.dtype, jnp.float32)
    ones = jnp.ones((x.shape[0], _num_choices(x, places)), wide)
    return returned(change, ones, places), None


def _returned_forward(*of: Any) -> tuple[jax.Array, Any]:
    return returned(*of), of


def _returned_backward(of: Any, change: jax.Array) -> tuple[Any, ...]:
    rows, weights, places = of
    k = weights.shape[1]
    own = weights.reshape(-1).at[places.choices].get(mode="fill", fill_value=0)
    d_rows = change.at[places.choices // k].get(mode="fill", fill_value=0) * own[:, None]
    d_weights = (_of_choices(rows, weights, places) * change[:, None]).sum(-1)
    d_weights = d_weights if jnp.iscomplexobj(weights) else d_weights.real
    return d_rows.astype(rows.dtype), d_weights.astype(weights.dtype), None


taken.defvjp(_taken_forward, _taken_backward)
returned.defvjp(_returned_forward, _returned_backward)
