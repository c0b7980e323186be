"""A full disk, told as what it is and not as a traceback."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from meshwright.errors import MeshwrightError


@contextlib.contextmanager
def telling_of_full_disks(directory: Path) -> Iterator[None]:
    """Say of a disk that is full in the block where that is, and how to go on.

    Raises:
      MeshwrightError: a disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise MeshwrightError(
            f"the run ended, as a disk is full: {error}. Its files are written to {directory}.\n"
            "  Make room there (or, of a run at an address, set TMPDIR to a directory with more), and run "
            "the same command again: it goes on from the newest checkpoint."
        ) from error
