"""Errors say which setting is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.errors import MeshwrightError


@contextmanager
def naming(field: str, kind: type[MeshwrightError] = MeshwrightError) -> Iterator[None]:
    """Put the name of a setting before the message of an error of this kind, unless it is there already."""
    try:
        yield
    except kind as error:
        if str(error).startswith(f"{field} "):
            raise
        parameter = field.rpartition(".")[2]  # which some messages begin with
        raise type(error)(f"{field}: {str(error).removeprefix(f'{parameter}: ')}") from None
