"""Errors about files that this user may not read."""

from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.errors import CheckpointError


@contextmanager
def telling_unreadable() -> Iterator[None]:
    """Turn a `PermissionError` into a `CheckpointError` that names the file. Also a decorator."""
    try:
        yield
    except PermissionError as error:
        raise CheckpointError(
            f"{error.filename} cannot be read: {error.strerror}. Ask its owner, or read as another user."
        ) from None
