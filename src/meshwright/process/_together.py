"""Work that process 0 does for all, and work that all processes do or none."""

from collections.abc import Callable
from typing import TypeVar, cast

import jax

from meshwright.errors import MeshwrightError
from meshwright.process._agree import agree, gather, is_lead
from meshwright.process._failures import error_of, failure_of

T = TypeVar("T")


def on_lead(act: Callable[[], T]) -> T:
    """Call `act` on process 0 and return its result, which JSON can hold, or raise its error, everywhere.

    An error that is neither ours nor the system's is raised as it is where it was raised; elsewhere, and
    errors of the system everywhere, become a `MeshwrightError`.
    Collective: call it on the main thread of all processes.
    """
    answer, error = _answer(act) if is_lead() else (None, None)
    answer = agree(answer)
    if "result" in answer:
        return answer["result"]
    if error is not None and _is_users(error):
        raise error
    raise error_of(answer) from error


def together(act: Callable[[], T]) -> T:
    """Call `act` on every process and return its result, or raise one error everywhere if any failed.

    Where several failed that is an error that is not a `DamagedError`, if there is one, and of these
    the first process's, raised as by `on_lead`. Collective: call it on the main thread of all processes;
    `act` must not be.
    """
    result, failure, error = None, None, None
    try:
        result = act()
    except Exception as raised:  # whatever it is, the others must hear of it
        failure, error = failure_of(raised), raised
    failures = {number: said for number, said in enumerate(gather(failure)) if said}
    if not failures:
        return cast(T, result)
    number = min(failures, key=lambda number: (failures[number]["kind"] == "DamagedError", number))
    if error is not None and _is_users(error) and number == jax.process_index():
        raise error
    raise error_of(failures[number], number if jax.process_count() > 1 else None) from error


def _is_users(error: Exception) -> bool:
    """Return whether a user's function raised it: it is neither ours nor the system's."""
    return not isinstance(error, MeshwrightError | OSError)


def _answer(act: Callable[[], T]) -> tuple[dict, Exception | None]:
    try:
        return {"result": act()}, None
    except Exception as error:  # whatever it is, the others must hear of it
        return failure_of(error), error
