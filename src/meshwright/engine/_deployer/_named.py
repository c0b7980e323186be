"""The paths of a deployer's checkpoints, and the name of the last one.

    ckpts/best/step_00000000/…     the newest checkpoint called "best"; it replaces the one before
    ckpts/last_ckpt.txt            the name that was saved last
    checkpoints/step_00000800/…    a checkpoint of `Trainer.fit`

The number in `ckpts/best/step_…` counts the saves under a name. The step of the run is in its `info`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import is_address, is_file_name, local_path
from meshwright.checkpoints._internal import Checkpoints
from meshwright.engine._deployer._workdir import Workdir
from meshwright.errors import CheckpointError, UsageError, listed

_NAMED, _LAST, _TRAINED = "ckpts", "last_ckpt.txt", "checkpoints"


@dataclass(frozen=True)
class Names:
    """The names of checkpoints in a workdir."""

    workdir: Workdir

    def path(self, ckpt_dir: str | Path) -> str | Path:
        """Return the path, or the address, of a checkpoint that is given by name, path or address.

        Raises:
          UsageError: The name cannot be that of a folder, or the processes do not share the workdir.
        """
        name = os.fspath(ckpt_dir)
        if is_address(name):
            return name
        label, directory = f"the checkpoint {name!r}", self.workdir.path
        if "/" not in name and directory is not None:
            if not is_file_name(name):
                raise UsageError(
                    f"{label} cannot be a folder in {directory / _NAMED}.\n  Give a name such as 'best', "
                    "or a path with a slash in it."
                )
            return self.workdir.shared_for(label) / _NAMED / name
        path = local_path(name).absolute()
        if directory in path.parents:
            self.workdir.shared_for(label)
        return path

    def existing(self, ckpt_dir: str | Path) -> str | Path:
        """Return the path, or the address, of a checkpoint to read.

        A name may also be a path in the current directory.

        Raises:
          CheckpointError: It is a name, and there is no checkpoint of that name.
        """
        path = self.path(ckpt_dir)
        if not isinstance(path, Path) or path.exists():
            return path
        if Path(ckpt_dir).exists():
            return Path(ckpt_dir)
        if self.workdir.path is not None and path.parent == self.workdir.path / _NAMED:
            raise _unknown_name(path, self.workdir.path)
        return path

    def remember(self, saved: str | Path) -> None:
        """Record `saved` as the last checkpoint if it is in `workdir/ckpts`. For one process to call."""
        directory = self.workdir.path
        if isinstance(saved, Path) and directory is not None and saved.parent == directory / _NAMED:
            temporary = saved.parent / f"{_LAST}.writing"
            temporary.write_text(saved.name, encoding="utf-8")
            temporary.replace(saved.parent / _LAST)

    def last_saved(self) -> str | None:
        """Return the path of the last checkpoint under a name, else of `Trainer.fit`'s; None if none exists.

        Raises:
          UsageError: The processes do not share the workdir.
        """
        if self.workdir.path is None:
            return None
        directory = self.workdir.shared_for("load_last_ckpt")
        pointer, trained = directory / _NAMED / _LAST, directory / _TRAINED
        if pointer.exists():
            return str(pointer.parent / pointer.read_text("utf-8").strip())
        return str(trained) if Checkpoints(trained).latest() is not None else None


def _unknown_name(path: Path, workdir: Path) -> CheckpointError:
    """Return the error for a name without a checkpoint. It lists the checkpoints that exist."""
    names = sorted(directory.name for directory in path.parent.glob("*/"))
    trained, message = workdir / _TRAINED, f"there is no checkpoint {path.name!r} in {path.parent}"
    message += f", which has {listed(names)}." if names else ", and none with another name."
    if trained.exists():
        is_redcos = path.name.startswith(("min_", "max_"))
        mode, _, score = path.name.partition("_") if is_redcos else ("min", "", "loss")
        name = next(
            (name for name in Checkpoints(trained).scores() if name.endswith(f"/{score}")), f"test/{score}"
        )
        best = f"mw.checkpoints.open_best({str(trained)!r}, {name!r}, {mode!r})"
        message += (
            f"\n  Of the checkpoints of Trainer.fit, load_ckpt({str(trained)!r}) loads the newest, and "
            f"load_ckpt({best}.path) the best."
        )
    return CheckpointError(message)


def loaded_message(step_dir: str, info: Mapping[str, Any]) -> str:
    """Return the log message for a checkpoint that was loaded."""
    values = ", ".join(f"{name} {value}" for name, value in info.items() if name != "rng")
    return f"loaded {step_dir}" + (f": {values}" if values else "")
