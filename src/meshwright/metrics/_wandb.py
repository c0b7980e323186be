"""Reports to Weights & Biases."""

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
    try:
        import wandb  # type: ignore[import]
    except ModuleNotFoundError:
        raise UsageError("wandb is not installed. Install it: pip install 'meshwright[wandb]'.") from None
    run = wandb.init(**init)

    def write(step: int, values: Mapping[str, float], /) -> None:
        run.log(dict(values), step=step)

    try:
        yield write
    finally:
        run.finish()
