"""What a launcher and a run tell each other: progress, the board, and starts that only compile.

A launcher names a file in the environment variable MESHWRIGHT_PROGRESS. It starts a failed run again only
while the step in this file grows, so that a run that always fails at the same place ends.
"""

import os
import tempfile
import threading
from pathlib import Path

from meshwright.processes._agree import is_lead

PROGRESS = "MESHWRIGHT_PROGRESS"
"""The environment variable with the path of the file."""

_lock = threading.Lock()


def is_launched() -> bool:
    """Return whether a launcher that starts failed runs again has started this process."""
    return bool(os.environ.get(PROGRESS))


def report_progress(step: int) -> None:
    """Write the newest saved step for the launcher, if there is one and this is process 0.

    A step that is not newer than the one in the file changes nothing: a disk may finish after the memory.
    Training does not depend on this file: if it cannot be written, the launcher sees no progress.
    """
    with _lock:
        if step > _reported():
            _report("", f"{step}\n")


def report_board(directory: Path) -> None:
    """Tell the launcher where the processes say where they stand, if there is one and this is process 0."""
    _report(".board", str(directory.absolute()))


def report_can_compile_ahead() -> None:
    """Tell the launcher, if there is one and this is process 0, that it may start this to compile only.

    See `only_compiles`.
    """
    _report(".ahead", "")


def why_started_again() -> str | None:
    """Return what the launcher says of the failure after which it started all processes again, and forget it.
    None if it did not, or if this was asked before.
    """
    try:
        note = Path(f"{os.environ[PROGRESS]}.failed")
        why = note.read_text("utf-8")
        note.unlink()
    except (KeyError, OSError, ValueError):
        return None
    return why


def _reported() -> int:
    """Return the step in the file; -1 if there is none."""
    try:
        return int(Path(os.environ[PROGRESS]).read_text("utf-8"))
    except (KeyError, OSError, ValueError):
        return -1


def _report(suffix: str, content: str) -> None:
    path = os.environ.get(PROGRESS)
    if not path or not is_lead():
        return
    path += suffix
    try:
        descriptor, temporary = tempfile.mkstemp(dir=Path(path).parent, prefix=f"{Path(path).name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError:
        return


_ASKED_BY = "MESHWRIGHT_ONLY_COMPILE"
"""The environment variable in which the launcher asks for it."""


def only_compiles() -> bool:
    """Return whether this process shall only compile."""
    return bool(os.environ.get(_ASKED_BY))
