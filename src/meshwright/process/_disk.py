"""Find out if all processes share a directory, or each has its own disk."""

import secrets
from pathlib import Path

from meshwright.process._agree import gather, is_lead
from meshwright.process._together import on_lead


def is_shared(directory: Path) -> bool:
    """Return whether `directory`, which all processes have, is one and the same. Collective.

    Process 0 leaves a file in it for a moment, for which all look.

    Raises:
      MeshwrightError: on every process, if process 0 cannot write there.
    """
    left = directory / on_lead(lambda: _leave_file(directory))
    seen = gather(left.exists())
    if is_lead():
        left.unlink()
    return all(seen)


def _leave_file(directory: Path) -> str:
    name = f".seen-by-all-{secrets.token_hex(4)}"
    (directory / name).touch()
    return name
