"""The directory of a run, and whether all processes see the same."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meshwright import process
from meshwright.errors import UsageError
from meshwright.storage import local_path

_INSTEAD = "Give a workdir of this machine; `save_ckpt` takes addresses."


@dataclass(frozen=True)
class Workdir:
    """The directory of a run, or none."""

    path: Path | None
    is_shared: bool
    """Do all processes see the same directory?"""

    def needed_for(self, what: str) -> Path:
        """Return the directory, which `what` needs.

        Raises:
          UsageError: There is none.
        """
        if self.path is None:
            raise UsageError(f"{what} needs a directory to write to: Deployer(workdir=...).")
        return self.path

    def shared_for(self, what: str) -> Path:
        """Return the directory, which `what` needs on all processes.

        Raises:
          UsageError: There is none, or each process has its own.
        """
        path = self.needed_for(what)
        if not self.is_shared:
            raise UsageError(f"{what} needs one directory for all processes.\n  {apart(path)}")
        return path


def local_workdir(given: str | Path | None) -> Path | None:
    """Return the directory that a user named, absolute.

    Raises:
      UsageError: It is an address in an object store.
    """
    return None if given is None else local_path(given, _INSTEAD).absolute()


def open_workdir(path: Path | None) -> Workdir:
    """Make the directory on every process, and find out whether all see the same. Collective.

    Raises:
      UsageError: On every process, if one cannot make it.
    """
    if path is None:
        return Workdir(None, is_shared=True)
    process.on_all(partial(_make, path))
    return Workdir(path, process.is_shared(path))


def apart(path: Path) -> str:
    """Return what people are told where each process has a directory of its own."""
    return (
        f"{path} is not the same directory on all processes: it seems to be on disks of their own. Logs "
        "and metrics can be there, but no checkpoint. Give a workdir on a disk that all of them mount."
    )


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the workdir {path} cannot be made: {error.strerror} ({error.filename}).\n"
            "  Give another, or mend its permissions or the disk's space."
        ) from None
