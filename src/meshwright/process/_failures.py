"""An error of one process in a form that JSON can hold, and made into one of another process."""

from collections.abc import Mapping

from meshwright import errors
from meshwright.errors import MeshwrightError

Failure = Mapping[str, str]


def failure_of(error: Exception) -> dict[str, str]:
    """Return the kind of an error and its message; the kind of others' errors is `MeshwrightError`."""
    if isinstance(error, MeshwrightError):
        return {"kind": type(error).__name__, "message": str(error)}
    return {"kind": MeshwrightError.__name__, "message": f"{type(error).__name__}: {error}"}


def error_of(failure: Failure, process_id: int | None = None) -> MeshwrightError:
    """Return the error again, its message naming the process that it comes from, if that is given."""
    where = "" if process_id is None else f"process {process_id}: "
    return getattr(errors, failure["kind"])(where + failure["message"])
