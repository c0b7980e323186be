"""Trackers: writers to other services. Their packages are optional, and their failures do not end a run.

A tracker is a context manager that opens a run of its service and yields a writer.
"""

import atexit
import functools
import importlib
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, cast

from meshwright.base._internal import import_extra, not_installed, num_required
from meshwright.errors import UsageError
from meshwright.observe._kinds import Image, Values, as_float, numbers
from meshwright.observe._metrics import Histogram
from meshwright.observe._writers import Writer, behind, tee

Tracker = Writer | Callable[[], AbstractContextManager[Writer]]
"""A writer, or a function that opens one: `functools.partial(mw.observe.wandb, project="digits")`."""

log = logging.getLogger("meshwright")


def is_writer(tracker: Tracker) -> bool:
    """Return True if a tracker is a writer, False if it is a function that opens one."""
    number = num_required(tracker, "tracker")
    if number not in (0, 2):
        raise UsageError(
            f"a tracker is a writer, which takes (step, values), or opens one and takes no arguments; found "
            f"one that takes {number}: {tracker}."
        )
    return number == 2


def open_trackers(opened: ExitStack, *trackers: Tracker, warn: Callable[[str], None]) -> Writer:
    """Open trackers and return one writer to all of them.

    A tracker that raises, when it is opened, written to or closed, is not used any more.
    """
    return tee(*(_FailSafe(tracker, opened, warn) for tracker in trackers))


class _FailSafe:
    """A writer to a tracker that stops writing once the tracker has failed."""

    def __init__(self, tracker: Tracker, opened: ExitStack, warn: Callable[[str], None]):
        self._name, self._warn = _name_of(tracker), warn
        self._write: Writer | None = None
        if is_writer(tracker):
            self._write = cast(Writer, tracker)
            return
        try:
            context = cast(Callable[[], AbstractContextManager[Writer]], tracker)()
            self._write = context.__enter__()
        except UsageError:
            # A mistake of the user ends the run, before it has begun.
            raise
        except Exception as error:
            self._fail("when it was opened", error)
        else:
            opened.push(functools.partial(self._close, context))

    def __call__(self, step: int, values: Values, /) -> None:
        if self._write is None:
            return
        try:
            self._write(step, values)
        except Exception as error:
            self._fail(f"at the report of step {step}", error)

    def _close(
        self,
        context: AbstractContextManager[Writer],
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave a tracker's context, without suppressing or replacing an exception of the run."""
        try:
            context.__exit__(kind, error, traceback)
        except Exception as raised:
            # An exception of the run that the context only passes on is no failure of the tracker.
            if raised is not error:
                self._fail("when it was closed", raised)

    def _fail(self, when: str, error: Exception) -> None:
        log.info("the tracker %s failed %s", self._name, when, exc_info=error)
        problem = f"{type(error).__name__}: {error}"
        self._warn(f"the tracker {self._name} failed {when}; the run continues without it: {problem}")
        # The tracker is still closed at the end, and may fail again.
        self._write, self._warn = None, _ignore


def as_media(package: Any, name: str, value: Any) -> Any:
    """Return a value as W&B, or a package like it, takes it. Text stays as it is."""
    match value:
        case Histogram():
            return package.Histogram(np_histogram=value.bins())
        case Image():
            return package.Image(value.pixels)
        case str():
            return value
        case _:
            return as_float(name, value)


def _ignore(text: str) -> None:
    """Ignore a message, as the first one has been shown."""


def _name_of(tracker: Any) -> str:
    while isinstance(tracker, functools.partial):
        tracker = tracker.func
    return getattr(tracker, "__qualname__", type(tracker).__qualname__)


def installed(package: str, attribute: str) -> Any:
    """Return the module of an installed package that has this attribute.

    A folder of the same name, such as runs of a tracker leave behind, can be imported, too. It lacks the
    attribute.
    """
    tracker = f"mw.observe.{package}"
    module = import_extra(package, extra=package, needed_by=tracker)
    if not hasattr(module, attribute):
        raise not_installed(package, extra=package, needed_by=tracker)
    return module


_NO_FORK = {"sdk": {"development": {"report_use_subprocess": False}}}


@contextmanager
def clearml(**init: Any) -> Generator[Writer, None, None]:
    """Open a ClearML task as a writer, and close it on leaving the context.

    Use `continue_last_task=True` to continue a task, and call `clearml.Task.set_offline(True)` before to work
    offline. ClearML does not copy TensorBoard's files; `auto_connect_frameworks` changes that. Numbers
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
    # By default ClearML reports from a forked process, which JAX's threads may not survive.
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


_MOST_IN_A_REQUEST = 1000  # of MLflow's REST interface
_REFUSED = re.compile(r"[^\w\-. :/]")


@contextmanager
def mlflow(**start_run: Any) -> Generator[Writer, None, None]:
    """Open an MLflow run as a writer, and end it on leaving the context; after an exception, as failed.

    The environment variable `MLFLOW_TRACKING_URI` names the server. Use `run_id="..."` to continue a run.
    Reports are sent in the background. Texts become artifacts, `name/step.txt`; histograms are left out, as
    MLflow has none. Characters that MLflow does not allow in the name of a number are replaced by `_`.

    Args:
      start_run: The arguments of `mlflow.start_run`.

    Raises:
      UsageError: The package mlflow is not installed.

    Example:
      >>> with mw.observe.mlflow(run_name="digits-7") as write:  # doctest: +SKIP
      ...     write(50, {"loss": 0.5})
    """
    package = installed("mlflow", "start_run")
    run_id, client = package.start_run(**start_run).info.run_id, package.MlflowClient()

    def write(step: int, values: Values, /) -> None:
        # The run is named by its id, as each thread has its own active run.
        milliseconds = int(1000 * time.time())
        named = {_REFUSED.sub("_", name): value for name, value in numbers(values).items()}
        metrics = (package.entities.Metric(*item, milliseconds, step) for item in named.items())
        while some := list(islice(metrics, _MOST_IN_A_REQUEST)):
            client.log_batch(run_id, some)
        for name, value in values.items():
            if isinstance(value, str):
                client.log_text(run_id, value, f"{name}/{step}.txt")
            elif isinstance(value, Image):
                client.log_image(run_id, value.pixels, key=name, step=step)

    try:
        # Each request waits for the server.
        with behind(write) as hand_over:
            yield hand_over
    finally:
        package.end_run("FINISHED" if sys.exception() is None else "FAILED")


@contextmanager
def trackio(**init: Any) -> Generator[Writer, None, None]:
    """Open a Trackio run as a writer, and finish it on leaving the context.

    Use `name="digits-7", resume="allow"` to continue a run. Runs are kept in `$TRACKIO_DIR` on this machine,
    unless `space_id` or `server_url` is given.

    Args:
      init: The arguments of `trackio.init`.

    Raises:
      UsageError: The package trackio is not installed.

    Example:
      >>> with mw.observe.trackio(project="digits") as write:  # doctest: +SKIP
      ...     write(50, {"loss": 0.5})
    """
    package = installed("trackio", "init")
    run = package.init(**init)

    def write(step: int, values: Values, /) -> None:
        media = {name: as_media(package, name, value) for name, value in values.items()}
        run.log(
            {name: package.Markdown(x) if isinstance(x, str) else x for name, x in media.items()}, step=step
        )

    try:
        yield write
    finally:
        run.finish()


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
