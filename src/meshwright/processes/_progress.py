"""Messages between a launcher and a run: progress, the folder of heartbeats, and starts that only compile.

A launcher names a file in the environment variable MESHWRIGHT_PROGRESS. It starts a failed run again only
while the step in this file grows, so that a run that always fails at the same place ends.
"""

import os
import tempfile
import threading
from pathlib import Path

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
        try:
            reported = int(Path(os.environ[PROGRESS]).read_text("utf-8"))
        except (KeyError, OSError, ValueError):
            reported = -1
        if step > reported:
            _report("", f"{step}\n")


def report_board(directory: Path) -> None:
    """Send the folder of heartbeats to the launcher, if there is one and this is process 0."""
    _report(".board", str(directory.absolute()))


def report_can_compile_ahead() -> None:
    """Tell the launcher, if there is one and this is process 0, that it may start this to compile only."""
    _report(".ahead", "")


def why_started_again() -> str | None:
    """Return the launcher's text about the failure that made it start all processes again; None if there is
    none. The text is forgotten.
    """
    try:
        note = Path(f"{os.environ[PROGRESS]}.failed")
        why = note.read_text("utf-8")
        note.unlink()
    except (KeyError, OSError, ValueError):
        return None
    return why


def _report(suffix: str, content: str) -> None:
    path = os.environ.get(PROGRESS)
    # This import loads JAX, which `is_launched` does not need.
    from meshwright.processes._agree import is_lead

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


def is_compile_only() -> bool:
    """Return whether this process shall only compile, by the environment variable that the launcher sets."""
    return bool(os.environ.get("MESHWRIGHT_ONLY_COMPILE"))
