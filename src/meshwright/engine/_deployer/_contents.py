"""The contents of the deployer's checkpoints: parts, which are trees of arrays, and JSON values, `info`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from meshwright.base._internal import PyTree, tree
from meshwright.checkpoints._internal import Checkpoints, as_source, last, restore
from meshwright.engine._deployer._plain import plain
from meshwright.errors import CheckpointError, UsageError
from meshwright.processes import _internal as processes


def save(
    path: str | Path, parts: Mapping[str, PyTree], info: Mapping[str, Any], float_dtype: DTypeLike | None
) -> None:
    """Save the parts and `info` to `path`. When it returns, all processes can load them. Collective."""
    floats = _floats(tree.named_leaves(tree.abstract(dict(parts))))
    dtypes = {name: x.dtype.name for name, x in floats.items()} if float_dtype is not None else {}
    casts = [(".*", _floating(float_dtype))] if dtypes else []
    with Checkpoints(path, keep=last(1), cast=casts) as checkpoints:
        newest = processes.agree(checkpoints.latest())
        number = 0 if newest is None else newest + 1
        checkpoints.save(number, dict(parts), {"info": plain(info), "dtypes": dtypes})


def parts_of(source: Any) -> set[str]:
    """Return the names of the parts that a checkpoint has."""
    return {name.partition("/")[0] for name in source.arrays()}


def part_of(source: Any, part: str, float_dtype: DTypeLike | None = None) -> PyTree:
    """Return a part as nested dictionaries of `ShapeDtypeStruct`s.

    Raises:
      CheckpointError: The checkpoint has no such part.
    """
    arrays = {name: x for name, x in source.arrays().items() if name.partition("/")[0] == part}
    if not arrays:
        raise CheckpointError(f"{source} has no {part!r}; it has {', '.join(sorted(parts_of(source)))}.")
    original = (source.extra or {}).get("dtypes", {})
    dtypes = original if float_dtype is None else dict.fromkeys(_floats(arrays), _floating(float_dtype))
    structs = {
        name.removeprefix(part).removeprefix("/"): jax.ShapeDtypeStruct(
            x.shape, jax.dtypes.canonicalize_dtype(dtypes.get(name, x.dtype))
        )
        for name, x in arrays.items()
    }
    return structs[""] if "" in structs else tree.nested(structs)


def read(source: Any, target: dict[str, PyTree]) -> dict[str, PyTree]:
    """Return `target`, read from a checkpoint. Floating arrays are cast to the dtypes of `target`.

    Raises:
      CheckpointError: The arrays do not fit `target`.
    """
    arrays = dict(source.arrays())
    for name, wanted in tree.named_leaves(target).items():
        if name in arrays and _is_castable(arrays[name].dtype, wanted.dtype):
            arrays[name] = arrays[name].astype(wanted.dtype)
    return restore(as_source(arrays, str(source)), target, ignore=".*")


def info_of(source: Any) -> dict[str, Any]:
    """Return the values saved with the parts; for a checkpoint of `Trainer.fit`, its step and scores."""
    extra = source.extra
    info = dict(extra["info"]) if "info" in extra else {"step": source.step, **extra.get("scores", {})}
    return info | ({"rng": jnp.asarray(info["rng"], jnp.uint32)} if "rng" in info else {})


def _floats(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}


def _is_castable(saved: Any, wanted: Any) -> bool:
    """Return whether the dtypes differ and both are floating, or JAX narrows one to the other, as int64."""
    if jnp.issubdtype(saved, jnp.floating):
        return saved != wanted and jnp.issubdtype(wanted, jnp.floating)
    return saved != wanted and jax.dtypes.canonicalize_dtype(saved) == wanted


def _floating(float_dtype: DTypeLike | None) -> np.dtype:
    try:
        dtype = jnp.dtype(float_dtype)
    except TypeError:
        dtype = None
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise UsageError(
            f"float_dtype={float_dtype!r} is not a floating-point dtype. Give one such as jnp.bfloat16."
        )
    return dtype
