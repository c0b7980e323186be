"""Arrays of other libraries, such as PyTorch tensors, in trees that a user gives."""

from typing import Any

import jax
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError

_OURS = jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic | bool | int | float | complex


def as_arrays(given: PyTree, what: str = "params") -> PyTree:
    """Return a tree whose arrays are all of JAX or NumPy.

    Those of other libraries are converted without a copy.
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
        return np.dtype(x.dtype) is not None  # an array of any library with a NumPy dtype
    except (AttributeError, TypeError):
        return False


def _read(name: str, x: Any) -> Any:
    if not hasattr(x, "__array__") and not hasattr(x, "__dlpack__"):
        raise UsageError(
            f"{name} is not an array; it is of type {type(x).__name__}.\n"
            "  Give arrays: trainer.params, load_ckpt(…)[0]['params'], eqx.filter(module, eqx.is_array)."
        )
    if hasattr(x, "detach"):
        x = x.detach()  # PyTorch refuses to export a tensor that records gradients
    try:
        # NumPy lacks bfloat16. Otherwise it is preferred: DLPack keeps arrays in the memory of one device.
        return jax.dlpack.from_dlpack(x) if "bfloat16" in str(x.dtype) else np.asarray(x)
    except Exception as error:
        raise UsageError(
            f"{name}, of type {type(x).__name__} and dtype {x.dtype}, cannot be read: {error}.\n"
            "  Give an array of NumPy or JAX. For a PyTorch tensor: x.detach().cpu().float().numpy()."
        ) from error
