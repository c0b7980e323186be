"""A stack of equal layers, which a mesh with the axis `pipeline` cuts into stages."""

from collections.abc import Callable
from typing import Any

import jax

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError
from meshwright.parallel._internal import stage_ways
from meshwright.program._internal import jaxprs


def layers(
    block: Callable[[PyTree, PyTree], Any], stacked: PyTree, x: PyTree, *, has_aux: bool = False
) -> Any:
    """Return `x` after all layers: `for layer in stacked: x = block(layer, x)`, as one scan.

    On a mesh with the axis `pipeline` the layers are the stages of a pipeline: `mw.make_step` sends the
    microbatches of a batch through them, several at a time. Losses and gradients are those of the same
    microbatches without the axis. In evaluations and predictions each layer is sent to all devices along the
    axis when it is needed, and these split the examples.

    Args:
      block: A pure function `(layer, x) -> x`; `x` keeps its shapes and dtypes. Other arrays that it uses,
        such as segments or a mask, are arrays that it refers to. Give it a policy by `jax.checkpoint`.
      stacked: The parameters of all layers, and whatever else each layer has of its own, such as a key. The
        first dimension of each array counts layers.
      x: The activations, a pytree of arrays.
      has_aux: True if `block` returns `(x, aux)`, such as a loss of its router.

    Returns:
      The activations after the last layer; with `has_aux` also the `aux` of all layers, stacked.

    Raises:
      UsageError: The arrays do not have the same number of layers, or `block` changes the structure, a shape
        or a dtype of `x`.

    Example:
      >>> weights = jnp.stack([jnp.eye(2), 2 * jnp.eye(2)])
      >>> print(mw.nn.layers(lambda w, x: x @ w, weights, jnp.ones(2)))
      [2. 2.]
    """
    _check_stacked(stacked)

    def apply(x: PyTree, layer: PyTree) -> tuple[PyTree, PyTree]:
        new, aux = block(layer, x) if has_aux else (block(layer, x), None)
        if changes := tree.differences(x, new):
            raise UsageError(
                f"a block of mw.nn.layers returned other activations than it received: {changes}."
            )
        return new, aux

    def stack_of_layers(stacked: PyTree, x: PyTree) -> tuple[PyTree, PyTree]:
        return jax.lax.scan(apply, x, stacked)

    stack_of_layers.__name__ = jaxprs.STACK
    is_split = stage_ways() > 1
    out, aux = (jax.jit(stack_of_layers) if is_split else stack_of_layers)(stacked, x)
    return (out, aux) if has_aux else out


def _check_stacked(stacked: PyTree) -> None:
    shapes = {name: leaf.shape for name, leaf in tree.named_leaves(stacked).items()}
    numbers = {shape[0] if shape else None for shape in shapes.values()}
    if len(numbers) != 1 or None in numbers:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "nothing"
        raise UsageError(
            f"mw.nn.layers: the first dimension of each array must count layers; found {listed}."
        )
