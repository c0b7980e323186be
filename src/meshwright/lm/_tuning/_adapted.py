"""The adapter of one weight: its new arrays, its product beside the frozen weight, and its sum with it.

The letters of `dims` name each dimension of a weight: `s` a stack of independent matrices, such as layers
that are scanned over, `i` an input and `o` an output.
"""

import contextlib
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

import jax
import jax.numpy as jnp

from meshwright.base._internal import tree
from meshwright.errors import UsageError
from meshwright.lm._tuning._quantised import Quantised, computed

_LETTERS = re.compile(r"(?=.*i)(?=.*o)[sio]+")


def check_letters(letters: str) -> None:
    """Check the letters of `dims`."""
    if not _LETTERS.fullmatch(letters):
        raise UsageError(
            f"dims has {letters!r}; expected one letter for each dimension: s for a stack of matrices, i for "
            "an input, o for an output, with at least one i and one o, such as 'sio'."
        )


def letters_of(name: str, shape: tuple[int, ...], letters_given: str | None) -> str:
    """Return the letters of a weight: `letters_given`, or those of a stack of matrices [in, out]."""
    if letters_given is None and len(shape) < 2:
        raise UsageError(
            f"{name} has shape {shape}: an adapter needs a matrix. Let the pattern match matrices only."
        )
    letters = "s" * (len(shape) - 2) + "io" if letters_given is None else letters_given
    if len(letters) != len(shape):
        raise UsageError(f"{name} has shape {shape}, but dims gives it {len(letters)} letters, {letters!r}.")
    return letters


def matrix_shape(shape: tuple[int, ...], letters: str) -> tuple[tuple[int, ...], int, int]:
    """Return the shape of the stack, the number of inputs and the number of outputs of a weight."""
    pairs = list(zip(letters, shape, strict=True))
    stack = tuple(size for letter, size in pairs if letter == "s")
    inputs, outputs = (math.prod(size for letter, size in pairs if letter == kind) for kind in "io")
    return stack, inputs, outputs


def as_matrices(weight: jax.Array, letters: str) -> jax.Array:
    """Return a weight as a stack of matrices, [stack..., in, out]."""
    stack, inputs, outputs = matrix_shape(weight.shape, letters)
    return weight.transpose(_order(letters)).reshape(*stack, inputs, outputs)


def as_weight(matrices: jax.Array, shape: tuple[int, ...], letters: str) -> jax.Array:
    """Return a stack of matrices in the shape of the weight: the inverse of `as_matrices`."""
    order = _order(letters)
    back = [order.index(dim) for dim in range(len(order))]
    return matrices.reshape([shape[dim] for dim in order]).transpose(back)


def _order(letters: str) -> list[int]:
    return sorted(range(len(letters)), key=lambda dim: "sio".index(letters[dim]))


def norms_of_outputs(matrices: jax.Array) -> jax.Array:
    """Return the norm of the weights of each output, float32[stack..., out]."""
    wide = matrices.astype(jnp.float32)
    return jnp.sqrt((wide * wide).sum(-2))


def adapted_matrices(
    matrices: jax.Array, a: jax.Array, b: jax.Array, magnitude: jax.Array | None, scale: float
) -> jax.Array:
    """Return matrices with their adapter added, float32[stack..., in, out].

    Without a magnitude that is W + scale A B (LoRA); with one, each output of this sum is divided by its norm
    and multiplied by its magnitude (DoRA). The norm is not differentiated, as in the paper's section 4.3.
    """
    wide = matrices.astype(jnp.float32)
    product = jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    wide = wide + scale * product
    if magnitude is None:
        return wide
    return (
        # The norm is not differentiated, as in section 4.3 of the paper.
        wide * (magnitude.astype(jnp.float32) / jax.lax.stop_gradient(norms_of_outputs(wide)))[..., None, :]
    )


Part = Mapping[str, Any]
"""The arrays of the adapter of one weight: `lora_a`, `lora_b` and, for DoRA, `magnitude`."""


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

    # NumPy's arrays then leave `x @ weight` to `__rmatmul__`.
    __array_ufunc__ = None

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


def parts_of(adapter: tree.PyTree) -> dict[str, dict[str, Any]]:
    """Return the arrays of an adapter by the name of the weight and their own, `lora_a`."""
    parts: dict[str, dict[str, Any]] = {}
    for name, x in tree.named_leaves(adapter).items():
        weight, _, part = name.rpartition("/")
        parts.setdefault(weight, {})[part] = x
    return parts


@overload
def named_key(key: jax.Array, name: str) -> jax.Array: ...
@overload
def named_key(key: None, name: str) -> None: ...
def named_key(key: jax.Array | None, name: str) -> jax.Array | None:
    """Return the key of a name, which does not depend on the other names; None without a key."""
    return None if key is None else jax.random.fold_in(key, zlib.crc32(name.encode()))


def new_part(sizes: tuple[tuple[int, ...], int, int], rank: int, key: jax.Array) -> dict[str, jax.Array]:
    """Return a new adapter. `lora_a` is uniform in ±1 / sqrt(in), as PEFT initialises it."""
    stack, inputs, outputs = sizes
    bound = inputs**-0.5
    return {
        "lora_a": jax.random.uniform(key, (*stack, inputs, rank), jnp.float32, -bound, bound),
        "lora_b": jnp.zeros((*stack, rank, outputs), jnp.float32),
    }


def factored(weight: Any, part: Part, key: jax.Array | None, scale: float, dropout: float) -> Adapted:
    """Return a weight with its adapter beside it, for `x @ weight`, with a dropout key for each matrix."""
    stack = weight.shape[:-2]
    # One key for each matrix of the stack, so that layers that are scanned over drop other inputs.
    keys = jax.random.split(key, stack) if key is not None and stack else key
    return Adapted(weight, part["lora_a"], part["lora_b"], part.get("magnitude"), keys, scale, dropout)


def added(weight: Any, letters: str, part: Part, scale: float) -> jax.Array:
    """Return a weight with its adapter added, in the dtype of the weight."""
    matrices = as_matrices(computed(weight), letters)
    new = adapted_matrices(matrices, part["lora_a"], part["lora_b"], part.get("magnitude"), scale)
    return as_weight(new, weight.shape, letters).astype(weight.dtype)


def _product(x: jax.Array, base: jax.Array | Quantised) -> jax.Array:
    """Return x W. The gradient computes a quantised W again; kept, those of all layers would be there."""
    if not isinstance(base, Quantised):
        return x @ base
    return jax.checkpoint(lambda x, base: x @ base.gathered())(x, base)


@contextlib.contextmanager
def explaining_other_uses() -> Iterator[None]:
    """Explain an error of a model that got an adapted weight where it needs an array."""
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        if Adapted.__name__ not in str(error):
            raise
        raise UsageError(
            'the model uses an adapted weight otherwise than as x @ w, which form="factored" of mw.lm.lora '
            f'needs: {str(error).splitlines()[0]}\n  Use mw.lm.lora(…, form="merged"), which gives the model '
            "arrays."
        ) from error
