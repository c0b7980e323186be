"""Arrays of other libraries, such as PyTorch's tensors, among those that a user gives."""

from typing import Any

import jax
import numpy as np

from meshwright import tree
from meshwright.errors import UsageError
from meshwright.tree import PyTree

_OURS = jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic | bool | int | float | complex


def as_arrays(given: PyTree, what: str = "params") -> PyTree:
    """Return a tree of arrays with those that are neither JAX's nor NumPy's as such, in their own memory.

    Args:
      what: Errors call the tree so.

    Raises:
      UsageError: A leaf is no array, or one that cannot be read.
    """
    if all(_is_known(x) for x in jax.tree.leaves(given)):
        return given
    return tree.map_named(
        lambda name, x: x if _is_known(x) else _read(f"{what}/{name}".rstrip("/"), x), given
    )


def _is_known(x: Any) -> bool:
    if isinstance(x, _OURS):
        return True
    try:
        return np.dtype(x.dtype) is not None  # an array of anyone's, in one of NumPy's dtypes
    except (AttributeError, TypeError):
        return False


def _read(name: str, x: Any) -> Any:
    if not hasattr(x, "__array__") and not hasattr(x, "__dlpack__"):
        raise UsageError(
            f"{name} is no array but a {type(x).__name__}.\n"
            "  Give arrays: trainer.params, load_ckpt(…)[0]['params'], eqx.filter(module, eqx.is_array)."
        )
    if hasattr(x, "detach"):
        x = x.detach()  # a tensor of PyTorch with a gradient does not show its values
    try:
        # NumPy lacks bfloat16, and comes first because DLPack keeps to the memory of one device.
        return jax.dlpack.from_dlpack(x) if "bfloat16" in str(x.dtype) else np.asarray(x)
    except Exception as error:
        raise UsageError(
            f"{name} is a {type(x).__name__} of {x.dtype}, which cannot be read: {error}.\n"
            "  Give an array of NumPy or JAX; of a tensor of PyTorch: x.detach().cpu().float().numpy()."
        ) from error
