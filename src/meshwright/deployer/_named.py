"""Where the deployer's checkpoints lie, and which of them was saved last.

    ckpts/best/step_00000000/…     the newest saved under this name; the one before goes when it is there
    ckpts/last_ckpt.txt            the name that was saved last
    checkpoints/step_00000800/…    what `Trainer.fit` saves

The number in `ckpts/best/step_…` counts the saves under a name; the run's own step is among its `info`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.checkpoint import Checkpoints
from meshwright.errors import UsageError
from meshwright.storage import is_address, is_file_name, local_path

if TYPE_CHECKING:
    from meshwright.deployer._deployer import Deployer

_NAMED, _LAST, _TRAINED = "ckpts", "last_ckpt.txt", "checkpoints"


def path(deployer: "Deployer", ckpt_dir: str | Path) -> str | Path:
    """Return what a name or a path, or the address of an object store, stands for.

    Raises:
      UsageError: it is a name that no folder can have, or the processes do not share the workdir.
    """
    given = os.fspath(ckpt_dir)
    if is_address(given):
        return given
    what = f"the checkpoint {given!r}"
    if "/" not in given and deployer.workdir is not None:
        if not is_file_name(given):
            raise UsageError(f"{what} is to be a folder in {deployer.workdir / _NAMED}, so give it a name.")
        return deployer.shared_workdir(what) / _NAMED / given
    at = local_path(given).absolute()
    if deployer.workdir in at.parents:
        deployer.shared_workdir(what)
    return at


def existing(deployer: "Deployer", ckpt_dir: str | Path) -> str | Path:
    """Return the same of what is to be read: it may look like a name and lie where the program runs."""
    found = path(deployer, ckpt_dir)
    is_here = isinstance(found, Path) and not found.exists() and Path(ckpt_dir).exists()
    return Path(ckpt_dir) if is_here else found


def remember(deployer: "Deployer", saved: str | Path) -> None:
    """Write down that `saved`, if it is in `workdir/ckpts`, was saved last. For one process to call."""
    if isinstance(saved, Path) and deployer.workdir is not None and saved.parent == deployer.workdir / _NAMED:
        written = saved.parent / f"{_LAST}.writing"
        written.write_text(saved.name)
        written.replace(saved.parent / _LAST)


def last_saved(deployer: "Deployer") -> str | None:
    """Return the path of what was saved last under a name, or by `Trainer.fit`; None if nothing was.

    Raises:
      UsageError: the processes do not share the workdir.
    """
    if deployer.workdir is None:
        return None
    workdir = deployer.shared_workdir("load_last_ckpt")
    pointer, trained = workdir / _NAMED / _LAST, workdir / _TRAINED
    if pointer.exists():
        return str(pointer.parent / pointer.read_text().strip())
    return str(trained) if Checkpoints(trained).latest() is not None else None


def told(step_dir: str, info: Mapping[str, Any]) -> str:
    """Return what the log says of a checkpoint that was loaded."""
    kept = ", ".join(f"{name} {value}" for name, value in info.items() if name != "rng")
    return f"loaded {step_dir}" + (f": {kept}" if kept else "")
