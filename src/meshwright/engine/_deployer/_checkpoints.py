"""A deployer's checkpoints by name, saved with the stream of PRNG keys. `_named.py` finds their paths.

A checkpoint has parts, which are trees of arrays, and JSON values, `info`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike

from meshwright.base._internal import PyTree, tree
from meshwright.checkpoints._internal import Checkpoints, Source, as_source, last, open_source, restore
from meshwright.engine._deployer._log import plain
from meshwright.engine._deployer._named import Names, loaded_message
from meshwright.engine._deployer._placement import Placement
from meshwright.errors import CheckpointError, UsageError
from meshwright.parallel._internal import Rules, as_arrays, place
from meshwright.processes import _internal as processes
from meshwright.training._internal import init_optimizer, key_of


class Randomness:
    """A stream of PRNG keys, the same on all processes. Checkpoints save and restore its `key`."""

    def __init__(self, seed: int):
        self.key = key_of(seed)

    def draw(self) -> jax.Array:
        """Return a new key."""
        self.key, new = jax.random.split(self.key)
        return new


@dataclass(frozen=True)
class NamedCheckpoints:
    """Checkpoints by name: saved with the stream of keys, and loaded onto a mesh."""

    names: Names
    placement: Placement
    randomness: Randomness
    tell: Callable[[str], None]

    def save_ckpt(
        self,
        ckpt_dir: str | Path,
        params: PyTree,
        opt_state: PyTree = None,
        float_dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        """Save a checkpoint to `ckpt_dir`, completely or not at all. Collective.

        When it returns, every process can load the checkpoint. An older checkpoint in `ckpt_dir` is deleted
        once the new one is complete. `load_last_ckpt` finds the one that was saved last in `workdir/ckpts`.

        Args:
          ckpt_dir: A name, for a directory in `workdir/ckpts`; or a path, which contains a slash: "./here".
          params: The parameters, as arrays of JAX, NumPy or PyTorch.
          opt_state: The optimizer's state. None saves none.
          float_dtype: The dtype of floating arrays in the file. `load_ckpt` casts them back.
          kwargs: Numbers and strings to save with it, such as `step` and `epoch_idx`.

        Raises:
          UsageError: `ckpt_dir` is a name and there is no workdir that all processes share; or a value is of
            a kind that cannot be saved.
          MeshwrightError: A process could not write. It is raised on every process.
        """
        path = self.names.path(ckpt_dir)
        parts = {"params": as_arrays(params)} | ({} if opt_state is None else {"opt_state": opt_state})
        _save(path, parts, {"rng": jax.random.key_data(self.randomness.key), **kwargs}, float_dtype)
        processes.on_lead(lambda: self.names.remember(path))
        self.tell(f"saved {path}")

    def load_params_shape(self, ckpt_dir: str | Path) -> PyTree:
        """Return the saved parameters' shapes and dtypes, as nested dictionaries of `ShapeDtypeStruct`s.

        Raises:
          CheckpointError: There is no complete checkpoint.
        """
        return _part_of(open_source(self.names.existing(ckpt_dir)), "params")

    def load_ckpt(
        self,
        ckpt_dir: str | Path,
        rules: Rules = None,
        optimizer: optax.GradientTransformation | None = None,
        float_dtype: DTypeLike | None = None,
        load_params: bool = True,
        load_opt_state: bool = True,
        update_key: bool = False,
    ) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """Return `{"params": ..., "opt_state": ...}`, on the mesh, and the values saved with it. Collective.

        A part is None if it was not saved or not requested. Parameters are nested dictionaries. A checkpoint
        of `Trainer.fit` may also have a "model_state".

        Args:
          ckpt_dir: The name or path that was given to `save_ckpt`, or a directory with checkpoints of
            `Trainer.fit`.
          rules: The sharding rules for the arrays. None finds rules, as `get_sharding_rules` does.
          optimizer: The optimizer. Without it the optimizer's state is not loaded.
          float_dtype: The dtype of floating arrays. None means the dtypes before `save_ckpt` cast them.
          load_params: False leaves the parameters out.
          load_opt_state: False leaves the optimizer's state out.
          update_key: True restores the deployer's stream of keys as it was when this was saved.

        Raises:
          CheckpointError: There is no complete checkpoint, or it does not fit the optimizer.
          DamagedError: The bytes in the files are not those that were written.
        """
        # Process 0 looks for the newest: on a network disk other processes may see it seconds later.
        step_dir = processes.on_lead(lambda: str(open_source(self.names.existing(ckpt_dir)).path))
        source = processes.on_all(lambda: open_source(step_dir))
        tx = optimizer if load_opt_state else None
        target = _target(self.placement, source, rules, tx, float_dtype)
        target = {part: x for part, x in target.items() if load_params or part == "opt_state"}
        loaded = processes.on_all(lambda: _read(source, target))
        info = _info_of(source)
        if update_key and "rng" in info:
            impl = jax.random.key_impl(self.randomness.key)
            self.randomness.key = jax.random.wrap_key_data(info["rng"], impl=impl)
        elif update_key:
            self.tell(f"! {step_dir} has no stream of keys: gen_rng goes on with that of the seed")
        self.tell(loaded_message(step_dir, info))
        return {"params": None, "opt_state": None} | loaded, info

    def load_last_ckpt(
        self,
        optimizer: optax.GradientTransformation | None = None,
        rules: Rules = None,
        float_dtype: DTypeLike | None = None,
        load_params: bool = True,
        load_opt_state: bool = True,
        update_key: bool = True,
    ) -> tuple[dict[str, PyTree] | None, dict[str, Any] | None]:
        """Load the last checkpoint in this workdir, as `load_ckpt` does; (None, None) if there is none.

        That is the one that `save_ckpt` saved last under a name; if there is none, the newest of
        `Trainer.fit`. The arguments are those of `load_ckpt`.
        """
        path = processes.on_lead(self.names.last_saved)
        if path is None:
            self.tell("no checkpoint was saved in this workdir, so none is loaded")
            return None, None
        return self.load_ckpt(path, rules, optimizer, float_dtype, load_params, load_opt_state, update_key)


def _target(
    placement: Placement,
    source: Source,
    rules: Rules,
    optimizer: optax.GradientTransformation | None,
    float_dtype: DTypeLike | None,
) -> dict[str, PyTree]:
    """Return the parts of a checkpoint to read, as structs with the shardings to place them with."""
    params, saved = _part_of(source, "params", float_dtype), _parts_of(source)
    rules = placement.get_sharding_rules(params) if rules is None else rules
    specs = placement.get_params_spec(params, rules)
    target = {"params": place(params, placement.shardings(specs))}
    if "model_state" in saved:
        state = _part_of(source, "model_state", float_dtype)
        target["model_state"] = place(state, placement.layout().shardings(state))
    if "opt_state" in saved and optimizer is not None:
        opt_state = jax.eval_shape(partial(init_optimizer, optimizer), params)
        opt_specs = placement.get_opt_state_spec(params, specs, optimizer)
        target["opt_state"] = place(opt_state, placement.shardings(opt_specs))
    return target


def _save(
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


def _parts_of(source: Any) -> set[str]:
    """Return the names of the parts that a checkpoint has."""
    return {name.partition("/")[0] for name in source.arrays()}


def _part_of(source: Any, part: str, float_dtype: DTypeLike | None = None) -> PyTree:
    """Return a part as nested dictionaries of `ShapeDtypeStruct`s.

    Raises:
      CheckpointError: The checkpoint has no such part.
    """
    arrays = {name: x for name, x in source.arrays().items() if name.partition("/")[0] == part}
    if not arrays:
        raise CheckpointError(f"{source} has no {part!r}; it has {', '.join(sorted(_parts_of(source)))}.")
    original = (source.extra or {}).get("dtypes", {})
    dtypes = original if float_dtype is None else dict.fromkeys(_floats(arrays), _floating(float_dtype))
    structs = {
        name.removeprefix(part).removeprefix("/"): jax.ShapeDtypeStruct(
            x.shape, jax.dtypes.canonicalize_dtype(dtypes.get(name, x.dtype))
        )
        for name, x in arrays.items()
    }
    return structs[""] if "" in structs else tree.nested(structs)


def _read(source: Any, target: dict[str, PyTree]) -> dict[str, PyTree]:
    """Return `target`, read from a checkpoint. Floating arrays are cast to the dtypes of `target`.

    Raises:
      CheckpointError: The arrays do not fit `target`.
    """
    arrays = dict(source.arrays())
    for name, struct in tree.named_leaves(target).items():
        if name in arrays and _is_castable(arrays[name].dtype, struct.dtype):
            arrays[name] = arrays[name].astype(struct.dtype)
    return restore(as_source(arrays, str(source)), target, ignore=".*")


def _info_of(source: Any) -> dict[str, Any]:
    """Return the values saved with the parts; for a checkpoint of `Trainer.fit`, its step and scores."""
    extra = source.extra
    info = dict(extra["info"]) if "info" in extra else {"step": source.step, **extra.get("scores", {})}
    return info | ({"rng": jnp.asarray(info["rng"], jnp.uint32)} if "rng" in info else {})


def _floats(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)}


def _is_castable(dtype: Any, target: Any) -> bool:
    """Return True if the dtypes differ and both are floating, or JAX narrows one to the other, as int64."""
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype != target and jnp.issubdtype(target, jnp.floating)
    return dtype != target and jax.dtypes.canonicalize_dtype(dtype) == target


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
