"""The paths of a deployer's checkpoints, and the name of the one saved last.

    ckpts/best/step_00000000/…     the newest saved under this name; the one before goes when it is there
    ckpts/last_ckpt.txt            the name that was saved last
    checkpoints/step_00000800/…    what `Trainer.fit` saves

The number in `ckpts/best/step_…` counts the saves under a name; the run's own step is among its `info`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.checkpoint import Checkpoints
from meshwright.deployer._workdir import Workdir
from meshwright.errors import CheckpointError, UsageError, listed
from meshwright.storage import is_address, is_file_name, local_path

_NAMED, _LAST, _TRAINED = "ckpts", "last_ckpt.txt", "checkpoints"


@dataclass(frozen=True)
class Names:
    """The names of checkpoints in a workdir."""

    workdir: Workdir

    def path(self, ckpt_dir: str | Path) -> str | Path:
        """Return what a name or a path, or the address of an object store, stands for.

        Raises:
          UsageError: It is a name that no folder can have, or the processes do not share the workdir.
        """
        given = os.fspath(ckpt_dir)
        if is_address(given):
            return given
        what, directory = f"the checkpoint {given!r}", self.workdir.path
        if "/" not in given and directory is not None:
            if not is_file_name(given):
                raise UsageError(f"{what} is to be a folder in {directory / _NAMED}, so give it a name.")
            return self.workdir.shared_for(what) / _NAMED / given
        at = local_path(given).absolute()
        if directory in at.parents:
            self.workdir.shared_for(what)
        return at

    def existing(self, ckpt_dir: str | Path) -> str | Path:
        """Return the same of what is to be read: it may look like a name and lie where the program runs.

        Raises:
          CheckpointError: It looks like a name, and nothing has it.
        """
        found = self.path(ckpt_dir)
        if not isinstance(found, Path) or found.exists():
            return found
        if Path(ckpt_dir).exists():
            return Path(ckpt_dir)
        if self.workdir.path is not None and found.parent == self.workdir.path / _NAMED:
            raise _no_such(found, self.workdir.path)
        return found

    def remember(self, saved: str | Path) -> None:
        """Write down that `saved`, if it is in `workdir/ckpts`, was saved last. For one process to call."""
        directory = self.workdir.path
        if isinstance(saved, Path) and directory is not None and saved.parent == directory / _NAMED:
            written = saved.parent / f"{_LAST}.writing"
            written.write_text(saved.name)
            written.replace(saved.parent / _LAST)

    def last_saved(self) -> str | None:
        """Return the path of what was saved last under a name, or by `Trainer.fit`; None if nothing was.

        Raises:
          UsageError: The processes do not share the workdir.
        """
        if self.workdir.path is None:
            return None
        directory = self.workdir.shared_for("load_last_ckpt")
        pointer, trained = directory / _NAMED / _LAST, directory / _TRAINED
        if pointer.exists():
            return str(pointer.parent / pointer.read_text().strip())
        return str(trained) if Checkpoints(trained).latest() is not None else None


def _no_such(path: Path, workdir: Path) -> CheckpointError:
    """Return the error for a name that nothing has, which says what there is instead."""
    names = sorted(each.name for each in path.parent.glob("*/"))
    trained, said = workdir / _TRAINED, f"there is no checkpoint {path.name!r} in {path.parent}"
    said += f", which has {listed(names)}." if names else ", and none with another name."
    if trained.exists():
        is_redcos = path.name.startswith(("min_", "max_"))
        mode, _, score = path.name.partition("_") if is_redcos else ("min", "", "loss")
        best = f"mw.checkpoint.open_best({str(trained)!r}, {'eval/' + score!r}, {mode!r})"
        said += (
            f"\n  Of what Trainer.fit saved, load_ckpt({str(trained)!r}) loads the newest, and "
            f"load_ckpt({best}.path) the best."
        )
    return CheckpointError(said)


def told(step_dir: str, info: Mapping[str, Any]) -> str:
    """Return what the log says of a checkpoint that was loaded."""
    kept = ", ".join(f"{name} {value}" for name, value in info.items() if name != "rng")
    return f"loaded {step_dir}" + (f": {kept}" if kept else "")
