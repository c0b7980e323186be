"""The deployer's methods for checkpoints by name. `_named.py` says where they lie."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import optax
from jax.typing import DTypeLike

from meshwright import process
from meshwright.arrays import Source
from meshwright.deployer import _named
from meshwright.deployer._contents import info_of, part_of, parts_of, read, save
from meshwright.deployer._placement import shardings
from meshwright.formats import open_source
from meshwright.sharding import place
from meshwright.tree import PyTree

if TYPE_CHECKING:
    from meshwright.deployer._deployer import Deployer


def save_ckpt(
    deployer: "Deployer",
    ckpt_dir: str | Path,
    params: PyTree,
    opt_state: PyTree = None,
    float_dtype: DTypeLike | None = None,
    **kwargs: Any,
) -> None:
    """Save to `ckpt_dir`, whole or not at all. Collective; when it returns, every process can load it.

    What was saved there before stays until the new is complete. What is in `workdir/ckpts` is remembered as
    the last that was saved.

    Args:
      ckpt_dir: a name, for a directory in `workdir/ckpts`; or a path, which has a slash in it: "./here".
      opt_state: None saves none, and leaves none from before.
      float_dtype: cast floating arrays to it in the file. `load_ckpt` casts them back.
      kwargs: numbers and texts to keep with it, such as `step` and `epoch_idx`.

    Raises:
      UsageError: a name needs a workdir that all processes share; or something is not of a kind to be saved.
      MeshwrightError: on every process, if one of them could not write.
    """
    path = _named.path(deployer, ckpt_dir)
    saved = {"params": params} | ({} if opt_state is None else {"opt_state": opt_state})
    save(path, saved, {"rng": jax.random.key_data(deployer.rng), **kwargs}, float_dtype)
    process.on_lead(lambda: _named.remember(deployer, path))
    deployer.log_info(f"saved {path}")


def load_params_shape(deployer: "Deployer", ckpt_dir: str | Path) -> PyTree:
    """Return the saved parameters' shapes and dtypes, as nested dictionaries of `ShapeDtypeStruct`s.

    Raises:
      CheckpointError: there is no whole checkpoint.
    """
    return part_of(open_source(_named.existing(deployer, ckpt_dir)), "params")


def load_ckpt(
    deployer: "Deployer",
    ckpt_dir: str | Path,
    params_sharding_rules: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    float_dtype: DTypeLike | None = None,
    load_params: bool = True,
    load_opt_state: bool = True,
    update_rng: bool = False,
) -> tuple[dict[str, PyTree], dict[str, Any]]:
    """Return `{"params": ..., "opt_state": ...}`, on the mesh, and what was kept with them. Collective.

    What was not saved or not asked for is None; the optimizer's state needs the `optimizer`. Parameters
    come as nested dictionaries. Of what `Trainer.fit` saved there is a "model_state", too, if it has one.

    Args:
      ckpt_dir: as `save_ckpt` was given it, or a directory with checkpoints of `Trainer.fit`.
      params_sharding_rules: how to split them; None finds rules, as `get_sharding_rules` does.
      float_dtype: of floating arrays; None means those that they had before `save_ckpt` cast them.
      update_rng: go on with the randomness as it was when this was saved.

    Raises:
      CheckpointError: there is no whole checkpoint, or it does not fit the optimizer.
      DamagedError: its bytes are not those written.
    """
    # Process 0 looks which is the newest: on a network disk others may not see for seconds that it is there.
    step_dir = process.on_lead(lambda: str(open_source(_named.existing(deployer, ckpt_dir)).path))
    source = process.together(lambda: open_source(step_dir))
    target = _target(
        deployer, source, params_sharding_rules, optimizer if load_opt_state else None, float_dtype
    )
    wanted = target if load_params else {part: x for part, x in target.items() if part == "opt_state"}
    loaded = process.together(lambda: read(source, wanted))
    info = info_of(source)
    if update_rng and "rng" in info:
        deployer.rng = jax.random.wrap_key_data(info["rng"], impl=jax.random.key_impl(deployer.rng))
    deployer.log_info(_named.told(step_dir, info))
    return {"params": None, "opt_state": None} | loaded, info


def load_last_ckpt(
    deployer: "Deployer",
    optimizer: optax.GradientTransformation | None = None,
    params_sharding_rules: Any = None,
    float_dtype: DTypeLike | None = None,
    load_params: bool = True,
    load_opt_state: bool = True,
    update_rng: bool = True,
) -> tuple[dict[str, PyTree] | None, dict[str, Any] | None]:
    """Return what was saved last in this workdir, as `load_ckpt` does; (None, None) if nothing was.

    That is what `save_ckpt` saved under a name; where it never did, the newest that `Trainer.fit` saved.
    """
    path = process.on_lead(lambda: _named.last_saved(deployer))
    if path is None:
        deployer.log_info("no checkpoint was saved in this workdir, so none is loaded")
        return None, None
    return deployer.load_ckpt(
        path, params_sharding_rules, optimizer, float_dtype, load_params, load_opt_state, update_rng
    )


def _target(
    deployer: "Deployer",
    source: Source,
    rules: Any,
    optimizer: optax.GradientTransformation | None,
    float_dtype: DTypeLike | None,
) -> dict[str, PyTree]:
    """Return the parts of a checkpoint as structs with shardings: what is to be read, and whereto."""
    params, saved = part_of(source, "params", float_dtype), parts_of(source)
    rules = deployer.get_sharding_rules(params) if rules is None else rules
    specs = deployer.get_params_spec(params, rules)
    target = {"params": place(params, shardings(deployer.mesh, specs))}
    if "model_state" in saved:
        state = part_of(source, "model_state", float_dtype)
        target["model_state"] = place(state, deployer.layout().shardings(state))
    if "opt_state" in saved and optimizer is not None:
        opt_state = jax.eval_shape(optimizer.init, params)
        opt_specs = deployer.get_opt_state_spec(params, specs, optimizer)
        target["opt_state"] = place(opt_state, shardings(deployer.mesh, opt_specs))
    return target
