"""A check whether all processes see the same directory, or each sees its own disk."""

import secrets
from pathlib import Path

from meshwright.processes._agree import gather, is_lead
from meshwright.processes._run_on import on_lead


def is_shared(directory: Path) -> bool:
    """Return whether all processes see the same directory. Collective.

    Process 0 creates a file in it for a moment, and all processes look for it.
    """
    file = directory / on_lead(lambda: _create_file(directory))
    seen = gather(file.exists())
    if is_lead():
        file.unlink()
    return all(seen)


def _create_file(directory: Path) -> str:
    name = f".seen-by-all-{secrets.token_hex(4)}"
    (directory / name).touch()
    return name
