"""Reports to Weights & Biases."""

import atexit
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from meshwright.errors import UsageError
from meshwright.metrics._writers import Writer


@contextmanager
def wandb(**init: Any) -> Generator[Writer, None, None]:
    """Open a run with `wandb.init(**init)`, and finish it on leaving.

    Raises:
      UsageError: wandb is not installed.
    """
    run, program_ends = _package().init(**init), False

    def leave_it_to_wandb() -> None:
        nonlocal program_ends
        program_ends = True

    def write(step: int, values: Mapping[str, float], /) -> None:
        run.log(dict(values), step=step)

    # At the end of the program wandb finishes its run by itself, which knows with what exit code, and
    # `finish` fails afterwards. This is called before that, as what is registered later is called earlier.
    atexit.register(leave_it_to_wandb)
    try:
        yield write
    finally:
        atexit.unregister(leave_it_to_wandb)
        if not program_ends:
            run.finish()


def _package() -> Any:
    try:
        import wandb  # type: ignore[import]
    except ModuleNotFoundError:
        wandb = None
    if not hasattr(wandb, "init"):  # a folder `wandb`, which runs leave behind, can be imported, too
        raise UsageError("wandb is not installed.\n  Install it: pip install 'meshwright[wandb]'.")
    return wandb
