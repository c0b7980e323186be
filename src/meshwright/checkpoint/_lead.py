"""What process 0 does for all."""

from collections.abc import Callable
from typing import TypeVar

from meshwright import errors, process

T = TypeVar("T")


def on_lead(act: Callable[[], T]) -> T:
    """Call `act` on process 0 and return its result, which JSON can hold, or raise its error, everywhere.

    Collective: call it on the main thread of all processes.
    """
    answer, error = _answer(act) if process.is_lead() else (None, None)
    answer = process.agree(answer)
    if "result" in answer:
        return answer["result"]
    raise getattr(errors, answer["kind"])(answer["message"]) from error


def _answer(act: Callable[[], T]) -> tuple[dict, Exception | None]:
    try:
        return {"result": act()}, None
    except errors.MeshwrightError as error:
        return {"kind": type(error).__name__, "message": str(error)}, error
    except Exception as error:  # whatever it is, the others must hear of it
        return {"kind": errors.MeshwrightError.__name__, "message": f"{type(error).__name__}: {error}"}, error
