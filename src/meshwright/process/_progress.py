"""What a launcher must know of a run: the newest step that is saved.

A launcher names a file in the environment variable MESHWRIGHT_PROGRESS. It starts a failed run again only
while the step in this file grows, so that a run that always fails at the same place ends.
"""

import os
import tempfile
from pathlib import Path

from meshwright.process._agree import is_lead

PROGRESS = "MESHWRIGHT_PROGRESS"
"""The environment variable with the path of the file."""


def report_progress(step: int) -> None:
    """Write the newest saved step for the launcher, if there is one and this is process 0.

    Training does not depend on this file: if it cannot be written, the launcher sees no progress.

    Args:
      step: The step of a checkpoint that is complete.
    """
    _report("", f"{step}\n")


def report_board(directory: Path) -> None:
    """Tell the launcher where the processes say where they stand, if there is one and this is process 0.

    Args:
      directory: The folder of the run's board.
    """
    _report(".board", str(directory.absolute()))


def _report(suffix: str, content: str) -> None:
    path = os.environ.get(PROGRESS)
    if not path or not is_lead():
        return
    path += suffix
    try:
        descriptor, temporary = tempfile.mkstemp(dir=Path(path).parent, prefix=f"{Path(path).name}.")
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError:
        return
