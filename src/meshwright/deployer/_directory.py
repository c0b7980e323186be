"""The directory of a run."""

from functools import partial
from pathlib import Path

from meshwright import process
from meshwright.errors import UsageError


def prepare(workdir: Path) -> bool:
    """Make `workdir` on every process, and return whether it is the same directory for all. Collective.

    Raises:
      UsageError: on every process, if one cannot make it.
    """
    process.together(partial(_make, workdir))
    return process.is_shared(workdir)


def apart(workdir: Path) -> str:
    """Return what people are told where it is not the same for all."""
    return (
        f"{workdir} is not the same directory on all processes: it seems to be on disks of their own. Logs "
        "and metrics can be there, but no checkpoint. Give a workdir on a disk that all of them mount."
    )


def _make(workdir: Path) -> None:
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"the workdir {workdir} cannot be made: {error.strerror} ({error.filename}).\n"
            "  Give another, or mend its permissions or the disk's space."
        ) from None
