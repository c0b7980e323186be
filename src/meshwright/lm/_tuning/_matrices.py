"""Weights as matrices of inputs and outputs, and what an adapter adds to them.

The letters of `dims` say what each dimension of a weight is: `s` a stack of independent matrices, such as
layers that are scanned over, `i` an input and `o` an output.
"""

import math
import re

import jax
import jax.numpy as jnp

from meshwright.errors import UsageError

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
