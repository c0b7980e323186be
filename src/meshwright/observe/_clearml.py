"""Reports to ClearML."""

import importlib
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from meshwright.observe._histogram import Histogram
from meshwright.observe._kinds import Image, Values, as_float
from meshwright.observe._trackers import installed
from meshwright.observe._writers import Writer

_NO_FORK = {"sdk": {"development": {"report_use_subprocess": False}}}


@contextmanager
def clearml(**init: Any) -> Generator[Writer, None, None]:
    """Open a ClearML task as a writer, and close it on leaving the context.

    Use `continue_last_task=True` to continue a task, and call `clearml.Task.set_offline(True)` before to work
    offline. ClearML is told not to copy TensorBoard's files; `auto_connect_frameworks` changes that. Numbers
    that are not finite, which ClearML shows as 0, go to the task's console as text.

    Args:
      init: The arguments of `clearml.Task.init`.

    Raises:
      UsageError: The package clearml is not installed.

    Example:
      >>> with mw.observe.clearml(project_name="digits", task_name="7") as write:  # doctest: +SKIP
      ...     write(50, {"loss": 0.5})
    """
    package = installed("clearml", "Task")
    # By default it reports from a forked process, which JAX's threads may not survive.
    importlib.import_module("clearml.config").ConfigWrapper.set_overrides(_NO_FORK)
    task = package.Task.init(**{"auto_connect_frameworks": {"tensorboard": False}, **init})
    logger = task.get_logger()

    def write(step: int, values: Values, /) -> None:
        for name, value in values.items():
            _report(logger, step, name, value)

    try:
        yield write
    finally:
        task.close()


def _report(logger: Any, step: int, name: str, value: Any) -> None:
    match value:
        case Histogram():
            counts, edges = value.bins()
            labels = [f"{edge:.4g}" for edge in edges[:-1]]
            logger.report_histogram(name, name, counts, step, xlabels=labels, xaxis="from")
        case Image():
            logger.report_image(name, name, step, image=value.pixels)
        case str():
            logger.report_text(f"step {step}, {name}: {value}", print_console=False)
        case _:
            _report_number(logger, step, name, as_float(name, value))


def _report_number(logger: Any, step: int, name: str, number: float) -> None:
    if math.isfinite(number):
        logger.report_scalar(name, name, number, step)
    else:
        logger.report_text(f"step {step}, {name}: {number}", print_console=False)
