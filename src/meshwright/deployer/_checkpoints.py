"""The deployer's methods for checkpoints by name: `workdir/ckpts/best`, and which of them was written last.

    ckpts/best/step_00000000/…     the newest saved under this name; the one before goes when it is there
    ckpts/last_ckpt.txt            the name that was saved last

The number in `step_…` counts the saves under a name; the run's own step is among what `info` holds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from meshwright import process, tree
from meshwright.checkpoint import Checkpoints, cast, last, open_source, restore
from meshwright.sharding import Layout, beside_params

if TYPE_CHECKING:
    from meshwright.deployer._deployer import Deployer

PyTree = Any

FOLDER, LAST = "ckpts", "last_ckpt.txt"


def save_ckpt(
    deployer: "Deployer",
    ckpt_dir: str | Path,
    params: PyTree,
    opt_state: PyTree = None,
    float_dtype: Any = None,
    **kwargs: Any,
) -> None:
    """Save under `workdir/ckpts/{ckpt_dir}`, whole or not at all, and remember it as the last. Collective.

    What the name held stays until the new is complete. When this returns, every process can load it.

    Args:
      ckpt_dir: a name, or a path of your own.
      opt_state: None saves none, and leaves none from before.
      float_dtype: cast floating arrays to it in the file.
      kwargs: numbers and texts to keep with it, such as `step` and `epoch_idx`.
    """
    path = _path(deployer, ckpt_dir)
    rng = np.asarray(jax.random.key_data(deployer.rng))
    saved = {"params": params} | ({} if opt_state is None else {"opt_state": opt_state})
    _save(path, saved, {"rng": rng, **kwargs}, float_dtype)
    if process.is_lead():
        _point_to(path)
    process.barrier("the last checkpoint is known")


def load_params_shape(deployer: "Deployer", ckpt_dir: str | Path) -> PyTree:
    """Return the saved parameters' shapes and dtypes, as nested dictionaries of structs."""
    return _structs(_path(deployer, ckpt_dir), "params")


def load_ckpt(
    deployer: "Deployer",
    ckpt_dir: str | Path,
    params_sharding_rules: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    float_dtype: Any = None,
    load_params: bool = True,
    load_opt_state: bool = True,
    update_rng: bool = False,
) -> tuple[dict[str, PyTree], dict[str, Any]]:
    """Return `{"params": ..., "opt_state": ...}`, on the mesh, and what was kept with them.

    What was not saved or not asked for is None; the optimizer's state needs the `optimizer`. Parameters
    come as nested dictionaries.

    Args:
      params_sharding_rules: how to split them; None finds rules, as `get_sharding_rules` does.
      update_rng: go on with the randomness as it was when this was saved.

    Raises:
      CheckpointError: there is none, or it does not fit the optimizer.
      DamagedError: its bytes are not those written.
    """
    path = _path(deployer, ckpt_dir)
    rules = params_sharding_rules or deployer.get_sharding_rules(deployer.load_params_shape(path))
    found, info = _load(
        path,
        deployer.layout(*rules),
        optimizer,
        float_dtype,
        load_params=load_params,
        load_opt_state=load_opt_state,
    )
    info["rng"] = np.asarray(info["rng"], np.uint32)
    if update_rng:
        deployer.rng = jax.random.wrap_key_data(jax.numpy.asarray(info["rng"]))
    return found, info


def load_last_ckpt(
    deployer: "Deployer",
    optimizer: optax.GradientTransformation | None = None,
    params_sharding_rules: Any = None,
    float_dtype: Any = None,
    load_params: bool = True,
    load_opt_state: bool = True,
    update_rng: bool = True,
) -> tuple[dict[str, PyTree] | None, dict[str, Any] | None]:
    """Return what `save_ckpt` saved last in this workdir, as `load_ckpt` does; (None, None) if nothing."""
    path = _pointed_to(deployer.in_workdir("load_last_ckpt"))
    path = process.agree(path and str(path))
    if path is None:
        return None, None
    return deployer.load_ckpt(
        path, params_sharding_rules, optimizer, float_dtype, load_params, load_opt_state, update_rng
    )


def _path(deployer: "Deployer", ckpt_dir: str | Path) -> Path:
    path = Path(ckpt_dir)
    if path.is_absolute() or len(path.parts) > 1:
        return path
    return deployer.in_workdir(f"checkpoint {ckpt_dir!r}") / FOLDER / path


def _save(path: Path, saved: Mapping[str, PyTree], info: Mapping[str, Any], float_dtype: Any) -> None:
    """Save named trees to `path`, and return when all processes can load them. Collective.

    What was saved there before stays until the new is complete.
    """
    floats = [(".*", jnp.dtype(float_dtype))] if float_dtype is not None else []
    with Checkpoints(path, keep=last(1), cast=floats) as checkpoints:
        newest = process.agree(checkpoints.latest())
        checkpoints.save(0 if newest is None else newest + 1, saved, {"info": _plain(info)})
    process.barrier(f"saved {path}")


def _point_to(path: Path) -> None:
    """Write down that `path` was saved last, at once or not at all. For one process to call."""
    pointer = path.parent / LAST
    written = pointer.with_suffix(".writing")
    written.write_text(path.name)
    written.replace(pointer)


def _pointed_to(workdir: Path) -> Path | None:
    """Return what was saved last; None if nothing was."""
    pointer = workdir / FOLDER / LAST
    return pointer.parent / pointer.read_text().strip() if pointer.exists() else None


def _structs(path: Path, part: str, float_dtype: Any = None) -> dict[str, Any]:
    """Return what `path` holds of `params` or `opt_state`, as nested dictionaries of `ShapeDtypeStruct`s."""
    arrays, above = open_source(path).arrays(), f"{part}/"
    return tree.nested(
        {
            name.removeprefix(above): jax.ShapeDtypeStruct(x.shape, _dtype(x.dtype, float_dtype))
            for name, x in arrays.items()
            if name.startswith(above)
        }
    )


def _load(
    path: Path,
    layout: Layout,
    optimizer: optax.GradientTransformation | None,
    float_dtype: Any,
    *,
    load_params: bool,
    load_opt_state: bool,
) -> tuple[dict[str, PyTree], dict[str, Any]]:
    """Return the parameters and the optimizer's state of a checkpoint, on the mesh, and its `info`."""
    source = open_source(path)
    params = _structs(path, "params", float_dtype)
    placed = layout.shardings({"params": params})["params"]
    target: dict[str, PyTree] = {}
    if load_params:
        target["params"] = _place(params, placed)
    if load_opt_state and optimizer is not None and any(x.startswith("opt_state/") for x in source.arrays()):
        opt_state = jax.eval_shape(optimizer.init, params)
        target["opt_state"] = _place(opt_state, beside_params(opt_state, params, placed))
    casts = [(".*", jnp.dtype(float_dtype))] if float_dtype is not None else []
    loaded = restore(cast(source, casts), target, ignore=".*")
    return {"params": None, "opt_state": None} | loaded, dict(source.extra["info"])


def _place(structs: PyTree, shardings: PyTree) -> PyTree:
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), structs, shardings)


def _dtype(saved: np.dtype, float_dtype: Any) -> np.dtype:
    wanted = jnp.issubdtype(saved, jnp.floating) and float_dtype is not None
    return jnp.dtype(float_dtype) if wanted else saved


def _plain(value: Any) -> Any:
    """Return `value` as JSON has it: numbers of NumPy and JAX become Python's, arrays lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return np.asarray(value).tolist() if hasattr(value, "dtype") else value
