"""The directory of a run, which all processes may share."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meshwright.base._internal import local_path
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes

_INSTEAD = "Give a local directory as workdir; `save_ckpt` takes addresses."


@dataclass(frozen=True)
class Workdir:
    """The directory of a run, or none."""

    path: Path | None
    """The directory; None if the run has none."""
    is_shared: bool
    """True if all processes see the same directory."""

    def needed_for(self, purpose: str) -> Path:
        """Return the directory.

        Args:
          purpose: The purpose of the directory, for the error.

        Raises:
          UsageError: There is no directory.
        """
        if self.path is None:
            raise UsageError(f"{purpose} needs a directory to write to: Deployer(workdir=...).")
        return self.path

    def shared_for(self, purpose: str) -> Path:
        """Return the directory that all processes share.

        Args:
          purpose: The purpose of the directory, for the error.

        Raises:
          UsageError: There is no directory, or the processes do not share it.
        """
        path = self.needed_for(purpose)
        if not self.is_shared:
            reason = not_shared_message(path)
            raise UsageError(f"{purpose} needs one directory for all processes.\n  {reason}")
        return path


def local_workdir(workdir: str | Path | None) -> Path | None:
    """Return the user's `workdir` as an absolute path.

    Raises:
      UsageError: It is an address in an object store.
    """
    return None if workdir is None else local_path(workdir, _INSTEAD).absolute()


def open_workdir(path: Path | None) -> Workdir:
    """Make the directory on every process, and check whether they share it. Collective.

    Raises:
      UsageError: A process cannot make it. It is raised on every process.
    """
    if path is None:
        return Workdir(None, is_shared=True)
    processes.on_all(partial(_make, path))
    return Workdir(path, processes.is_shared(path))


def not_shared_message(path: Path) -> str:
    """Return the message for a workdir that the processes do not share."""
    return (
        f"{path} is not the same directory on all processes: each seems to have it on a disk of its own. "
        "Logs and metrics can go there, but no checkpoints. Give a workdir on a disk that all of them mount."
    )


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the workdir {path} cannot be made: {error.strerror} ({error.filename}).\n"
            "  Give another directory, or check the permissions and the free space of the disk."
        ) from None
