"""Reports to Weights & Biases."""

import atexit
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from meshwright.observe._kinds import Values
from meshwright.observe._trackers import as_media, installed
from meshwright.observe._writers import Writer


@contextmanager
def wandb(**init: Any) -> Generator[Writer, None, None]:
    """Open a Weights & Biases run as a writer, and finish it on leaving the context.

    Use `id="digits-7", resume="allow"` to continue a run, and `mode="offline"` to work offline.

    Args:
      init: The arguments of `wandb.init`.

    Raises:
      UsageError: The package wandb is not installed.

    Example:
      >>> with mw.observe.wandb(project="digits", mode="offline") as write:  # doctest: +SKIP
      ...     write(50, {"loss": 0.5})
    """
    package = installed("wandb", "init")
    run, program_ends = package.init(**init), False

    def leave_it_to_wandb() -> None:
        nonlocal program_ends
        program_ends = True

    def write(step: int, values: Values, /) -> None:
        run.log({name: as_media(package, name, value) for name, value in values.items()}, step=step)

    # At the end of the program wandb finishes its run by itself, with the exit code; `finish` fails after
    # that. This function runs before wandb's, as Python calls later registrations first.
    atexit.register(leave_it_to_wandb)
    try:
        yield write
    finally:
        atexit.unregister(leave_it_to_wandb)
        if not program_ends:
            run.finish()
