"""A frozen weight with its adapter beside it: the product with it takes the short way."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.lm._tuning._matrices import adapted_matrices
from meshwright.lm._tuning._quantised import Quantised


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Adapted:
    """A weight for `x @ weight`, which computes x W + scale drop(x) A B without making W + scale A B.

    It is a pytree, and its arrays share their first dimensions, so that it can be scanned over. It has no
    `__jax_array__` on purpose: JAX would then make the whole weight for `x @ weight`, and dropout, which is
    of x, would silently be left out.
    """

    base: jax.Array | Quantised
    """The frozen weight, [stack..., in, out]."""
    a: jax.Array
    """[stack..., in, rank]."""
    b: jax.Array
    """[stack..., rank, out]."""
    magnitude: jax.Array | None
    """[stack..., out] for DoRA, otherwise None."""
    key: jax.Array | None
    """A key for each matrix of the stack, [stack...]; None without dropout."""
    scale: float = field(metadata={"static": True})
    dropout: float = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    @property
    def ndim(self) -> int:
        return self.base.ndim

    @property
    def dtype(self) -> Any:
        return self.base.dtype

    __array_ufunc__ = None  # so that NumPy's arrays leave `x @ weight` to `__rmatmul__`

    def __rmatmul__(self, x: jax.Array) -> jax.Array:
        out = _product(x, self.base)
        added = (self._dropped(x) @ self.a) @ self.b
        out = out + (self.scale * added).astype(out.dtype)
        if self.magnitude is None:
            return out
        return out * self._gain()[..., None, :].astype(out.dtype)

    def _dropped(self, x: jax.Array) -> jax.Array:
        if self.key is None:
            return x
        is_kept = jax.random.bernoulli(self.key, 1 - self.dropout, x.shape)
        return jnp.where(is_kept, x / (1 - self.dropout), 0).astype(x.dtype)

    def _gain(self) -> jax.Array:
        """Return DoRA's factor of each output: its magnitude over the norm of the adapted weights."""
        assert self.magnitude is not None
        base, a, b = jax.lax.stop_gradient((jnp.asarray(self.base), self.a, self.b))
        wide = adapted_matrices(base, a, b, None, self.scale)
        return self.magnitude.astype(jnp.float32) / jnp.sqrt((wide * wide).sum(-2))


def _product(x: jax.Array, base: jax.Array | Quantised) -> jax.Array:
    """Return x W. The gradient computes a quantised W again; kept, those of all layers would be there."""
    if not isinstance(base, Quantised):
        return x @ base
    return jax.checkpoint(lambda x, base: x @ base.gathered())(x, base)
