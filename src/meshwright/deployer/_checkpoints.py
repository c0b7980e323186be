"""A deployer's checkpoints by name. `_named.py` says where they lie, `_contents.py` what is in them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import optax
from jax.typing import DTypeLike

from meshwright import process
from meshwright.arrays import Source
from meshwright.deployer._contents import info_of, part_of, parts_of, read, save
from meshwright.deployer._named import Names, told
from meshwright.deployer._placement import Placement
from meshwright.deployer._randomness import Randomness
from meshwright.formats import open_source
from meshwright.sharding import Rules, as_arrays, place
from meshwright.train import init_optimizer
from meshwright.tree import PyTree


@dataclass(frozen=True)
class NamedCheckpoints:
    """Checkpoints by name, loaded onto a mesh, and the randomness that they keep."""

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
        """Save to `ckpt_dir`, whole or not at all. Collective; when it returns, every process can load it.

        What was saved there before stays until the new is complete. What is in `workdir/ckpts` is remembered
        as the last that was saved.

        Args:
          ckpt_dir: A name, for a directory in `workdir/ckpts`; or a path, which has a slash in it: "./here".
          opt_state: None saves none, and leaves none from before.
          float_dtype: Floating arrays are cast to it in the file. `load_ckpt` casts them back.
          kwargs: Numbers and texts to keep with it, such as `step` and `epoch_idx`.

        Raises:
          UsageError: A name needs a workdir that all processes share; or something is not of a kind to be
            saved.
          MeshwrightError: On every process, if one of them could not write.
        """
        path = self.names.path(ckpt_dir)
        saved = {"params": as_arrays(params)} | ({} if opt_state is None else {"opt_state": opt_state})
        save(path, saved, {"rng": jax.random.key_data(self.randomness.key), **kwargs}, float_dtype)
        process.on_lead(lambda: self.names.remember(path))
        self.tell(f"saved {path}")

    def load_params_shape(self, ckpt_dir: str | Path) -> PyTree:
        """Return the saved parameters' shapes and dtypes, as nested dictionaries of `ShapeDtypeStruct`s.

        Raises:
          CheckpointError: There is no whole checkpoint.
        """
        return part_of(open_source(self.names.existing(ckpt_dir)), "params")

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
        """Return `{"params": ..., "opt_state": ...}`, on the mesh, and what was kept with them. Collective.

        What was not saved or not asked for is None; the optimizer's state needs the `optimizer`. Parameters
        come as nested dictionaries. Of what `Trainer.fit` saved there is a "model_state", too, if it has one.

        Args:
          ckpt_dir: The name or path that `save_ckpt` was given, or a directory with checkpoints of
            `Trainer.fit`.
          rules: They say how to split them; None finds rules, as `get_sharding_rules` does.
          float_dtype: The dtype of floating arrays; None means those that they had before `save_ckpt` cast
            them.
          update_key: Go on with the randomness as it was when this was saved.

        Raises:
          CheckpointError: There is no whole checkpoint, or it does not fit the optimizer.
          DamagedError: Its bytes are not those written.
        """
        # Process 0 looks for the newest: on a network disk others may not see for seconds that it is there.
        step_dir = process.on_lead(lambda: str(open_source(self.names.existing(ckpt_dir)).path))
        source = process.on_all(lambda: open_source(step_dir))
        tx = optimizer if load_opt_state else None
        target = _target(self.placement, source, rules, tx, float_dtype)
        wanted = target if load_params else {part: x for part, x in target.items() if part == "opt_state"}
        loaded = process.on_all(lambda: read(source, wanted))
        info = info_of(source)
        if update_key and "rng" in info:
            impl = jax.random.key_impl(self.randomness.key)
            self.randomness.key = jax.random.wrap_key_data(info["rng"], impl=impl)
        self.tell(told(step_dir, info))
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
        """Return what was saved last in this workdir, as `load_ckpt` does; (None, None) if nothing was.

        That is what `save_ckpt` saved under a name; where it never did, the newest that `Trainer.fit` saved.
        """
        path = process.on_lead(self.names.last_saved)
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
    """Return the parts of a checkpoint as structs with shardings: what is to be read, and whereto."""
    params, saved = part_of(source, "params", float_dtype), parts_of(source)
    rules = placement.get_sharding_rules(params) if rules is None else rules
    specs = placement.get_params_spec(params, rules)
    target = {"params": place(params, placement.shardings(specs))}
    if "model_state" in saved:
        state = part_of(source, "model_state", float_dtype)
        target["model_state"] = place(state, placement.layout().shardings(state))
    if "opt_state" in saved and optimizer is not None:
        opt_state = jax.eval_shape(partial(init_optimizer, optimizer), params)
        opt_specs = placement.get_opt_state_spec(params, specs, optimizer)
        target["opt_state"] = place(opt_state, placement.shardings(opt_specs))
    return target
