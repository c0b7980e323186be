"""What process 0 does for all, and what all do or none."""

from collections.abc import Callable
from typing import TypeVar, cast

import jax

from meshwright import errors
from meshwright.process._agree import agree, gather, is_lead

T = TypeVar("T")


def on_lead(act: Callable[[], T]) -> T:
    """Call `act` on process 0 and return its result, which JSON can hold, or raise its error, everywhere.

    Collective: call it on the main thread of all processes.
    """
    answer, error = _answer(act) if is_lead() else (None, None)
    answer = agree(answer)
    if "result" in answer:
        return answer["result"]
    raise getattr(errors, answer["kind"])(answer["message"]) from error


def together(act: Callable[[], T]) -> T:
    """Call `act` on every process and return its result, or raise one error everywhere if any failed.

    Where several failed that is an error that is not a `DamagedError`, if there is one, and of these
    the first process's. Collective: call it on the main thread of all processes; `act` must not be.
    """
    result, failure, error = None, None, None
    try:
        result = act()
    except Exception as raised:  # whatever it is, the others must hear of it
        failure, error = _failure(raised), raised
    failures = {number: said for number, said in enumerate(gather(failure)) if said}
    if not failures:
        return cast(T, result)
    number = min(failures, key=lambda number: (failures[number]["kind"] == "DamagedError", number))
    said = failures[number]
    where = f"process {number}: " if jax.process_count() > 1 else ""
    raise getattr(errors, said["kind"])(where + said["message"]) from error


def _answer(act: Callable[[], T]) -> tuple[dict, Exception | None]:
    try:
        return {"result": act()}, None
    except Exception as error:  # whatever it is, the others must hear of it
        return _failure(error), error


def _failure(error: Exception) -> dict[str, str]:
    if isinstance(error, errors.MeshwrightError):
        return {"kind": type(error).__name__, "message": str(error)}
    return {"kind": errors.MeshwrightError.__name__, "message": f"{type(error).__name__}: {error}"}
