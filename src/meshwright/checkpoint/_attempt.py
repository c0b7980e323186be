"""Where an attempt to save a step is made, and whether there is anything to do."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.checkpoint import _directory
from meshwright.checkpoint._damage import incomplete
from meshwright.checkpoint._format import MANIFEST
from meshwright.documents import check_depth
from meshwright.errors import UsageError
from meshwright.storage import Directory

log = logging.getLogger("meshwright")


def begin_attempt(directory: Directory, step: int, extra: Mapping[str, Any] | None) -> str | None:
    """Make a directory for a new attempt and return its name, or None when `step` is saved already."""
    if step < 0:
        raise UsageError(f"cannot save step {step}: steps count from 0.")
    _check_json(extra)
    final = _directory.step_path(directory, step)
    there = (final / MANIFEST).is_file()
    if there or (isinstance(final, Path) and os.path.lexists(final)):  # a broken link, too, is in the way
        wrong = incomplete(final) if there else f"there is no {MANIFEST}"
        if not wrong:
            return None
        aside = _directory.set_aside(directory, step)
        log.error(f"{final} is no complete checkpoint: {wrong}. It is kept as {aside}, and saved anew.")
    temporary = _directory.temporary_path(directory, step)
    temporary.mkdir()
    return str(temporary).removeprefix(f"{directory}/")


def _check_json(extra: Mapping[str, Any] | None) -> None:
    try:
        check_depth(json.loads(json.dumps(extra)))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot save `extra`, as JSON cannot hold it: {error}.") from None
