"""Errors as JSON, so that an error of one process can be raised on another."""

from collections.abc import Mapping

from meshwright import errors
from meshwright.errors import MeshwrightError

Failure = Mapping[str, str]
"""The `kind` of an error, the name of its class, and its `message`."""


def failure_of(error: Exception) -> dict[str, str]:
    """Return an error as JSON. An error that is not a `MeshwrightError` gets this kind."""
    if isinstance(error, MeshwrightError):
        return {"kind": type(error).__name__, "message": str(error)}
    return {"kind": MeshwrightError.__name__, "message": f"{type(error).__name__}: {error}"}


def error_of(failure: Failure, process_id: int | None = None) -> MeshwrightError:
    """Return the error that a failure describes."""
    where = "" if process_id is None else f"process {process_id}: "
    return getattr(errors, failure["kind"])(where + failure["message"])
