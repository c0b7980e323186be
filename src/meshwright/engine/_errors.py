"""Context managers that turn errors into messages for the user: the setting that is wrong, or a full disk."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from meshwright.base._internal import advice
from meshwright.errors import OF_THE_MACHINE, MeshwrightError, PeersError


@contextlib.contextmanager
def errors_naming(field: str, kind: type[MeshwrightError] = MeshwrightError) -> Iterator[None]:
    """Put the name of a setting before the message of an error that the block raises."""
    try:
        yield
    except kind as error:
        if str(error).startswith(f"{field} ") or isinstance(error, PeersError):  # the setting is not to blame
            raise
        parameter = field.rpartition(".")[2]  # some messages begin with it
        raise type(error)(f"{field}: {str(error).removeprefix(f'{parameter}: ')}") from None


@contextlib.contextmanager
def explaining_full_disk(directory: Path) -> Iterator[None]:
    """Replace the error of a disk that is full or fails in the block by one that says how to go on."""
    try:
        yield
    except OSError as error:
        is_gone = isinstance(error, FileNotFoundError) and not directory.exists()
        cause = "its directory was removed" if is_gone else OF_THE_MACHINE.get(error.errno or 0)
        if cause is None:
            raise
        space = "Free some space there, or, if the run directory is a URL, set TMPDIR to a larger directory. "
        raise MeshwrightError(
            f"the run ended because {cause}: {error}. The run writes its files to {directory}.\n"
            f"  {space if error.errno in (errno.ENOSPC, errno.EDQUOT) else advice(error)}"
            "Then run the same command again: it continues from the newest checkpoint."
        ) from error
