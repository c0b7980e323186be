"""Reports to Weights & Biases."""

import atexit
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from meshwright.metrics._kinds import Values
from meshwright.metrics._trackers import as_media, installed
from meshwright.metrics._writers import Writer


@contextmanager
def wandb(**init: Any) -> Generator[Writer, None, None]:
    """Open a run with `wandb.init(**init)`, and finish it on leaving.

    A run that goes on: `id="digits-7", resume="allow"`. Offline: `mode="offline"`.

    Raises:
      UsageError: wandb is not installed.
    """
    package = installed("wandb", "init")
    run, program_ends = package.init(**init), False

    def leave_it_to_wandb() -> None:
        nonlocal program_ends
        program_ends = True

    def write(step: int, values: Values, /) -> None:
        run.log({name: as_media(package, name, value) for name, value in values.items()}, step=step)

    # At the end of the program wandb finishes its run by itself, which knows with what exit code, and
    # `finish` fails afterwards. This is called before that, as what is registered later is called earlier.
    atexit.register(leave_it_to_wandb)
    try:
        yield write
    finally:
        atexit.unregister(leave_it_to_wandb)
        if not program_ends:
            run.finish()
