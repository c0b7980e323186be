"""Functions that run on process 0 for all processes, or on all processes with one common error."""

from collections.abc import Callable
from typing import TypeVar, cast

import jax

from meshwright.errors import MeshwrightError
from meshwright.processes._agree import agree, gather, is_lead
from meshwright.processes._failures import error_of, failure_of

T = TypeVar("T")


def on_lead(act: Callable[[], T]) -> T:
    """Call a function on process 0; return its result, or raise its error, on every process. Collective.

    An error of a user's function is raised unchanged on process 0, and as a `MeshwrightError` that names
    process 0 on the others.
    An `OSError` becomes a `MeshwrightError` on all processes.
    """
    answer, error = _answer(act) if is_lead() else (None, None)
    answer = agree(answer)
    if "result" in answer:
        return answer["result"]
    if error is not None and _is_users(error):
        raise error
    # The launcher takes an error that names another process for that one's. Errors of ours are equal on all.
    is_others = not is_lead() and answer["kind"] == MeshwrightError.__name__
    raise error_of(answer, 0 if is_others else None) from error


def on_all(act: Callable[[], T]) -> T:
    """Call a function on every process and return its result, or raise the same error on all. Collective.

    If several processes fail, the error is that of the first one whose error is not a `DamagedError`, or of
    the first one. It is raised as by `on_lead`.
    """
    result, failure, error = None, None, None
    try:
        result = act()
    except Exception as raised:  # any error must reach the other processes
        failure, error = failure_of(raised), raised
    failures = {number: each for number, each in enumerate(gather(failure)) if each}
    if not failures:
        return cast(T, result)
    number = min(failures, key=lambda number: (failures[number]["kind"] == "DamagedError", number))
    if error is not None and _is_users(error) and number == jax.process_index():
        raise error
    raise error_of(failures[number], number if jax.process_count() > 1 else None) from error


def _is_users(error: Exception) -> bool:
    """Return whether an error comes from a user's function: from neither Meshwright nor the system."""
    return not isinstance(error, MeshwrightError | OSError)


def _answer(act: Callable[[], T]) -> tuple[dict, Exception | None]:
    try:
        return {"result": act()}, None
    except Exception as error:  # any error must reach the other processes
        return failure_of(error), error
