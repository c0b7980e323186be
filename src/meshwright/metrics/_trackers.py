"""Trackers: writers to services of others, which need not be installed, and whose failures end no run."""

import functools
import importlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, cast

from meshwright.arguments import num_required
from meshwright.errors import UsageError
from meshwright.metrics._histogram import Histogram
from meshwright.metrics._kinds import Image, Values, as_float
from meshwright.metrics._writers import Writer, tee

Tracker = Writer | Callable[[], AbstractContextManager[Writer]]
"""A writer, or what opens one: `functools.partial(mw.metrics.wandb, project="digits")`."""

log = logging.getLogger("meshwright")


def is_writer(tracker: Tracker) -> bool:
    """Return whether a tracker is a writer, and not what opens one: whether it takes a step and values.

    Raises:
      UsageError: it is neither.
    """
    number = num_required(tracker, "tracker")
    if number not in (0, 2):
        raise UsageError(
            f"a tracker takes (step, values), or nothing and opens what does; this takes {number} arguments: "
            f"{tracker}."
        )
    return number == 2


def open_trackers(opened: ExitStack, *trackers: Tracker, tell: Callable[[str], None]) -> Writer:
    """Return one writer to all of `trackers`, of which `opened` closes what had to be opened.

    One that raises, when it is opened, written to or closed, is put aside: `tell` is told of it, once, and
    nothing more is written to it.

    Raises:
      UsageError: one is no tracker; or its package is not installed, as it says when it is opened.
    """
    return tee(*(_PutAside(tracker, opened, tell) for tracker in trackers))


class _PutAside:
    """The writer of a tracker, until the tracker fails; then one that writes nothing."""

    def __init__(self, tracker: Tracker, opened: ExitStack, tell: Callable[[str], None]):
        self._name, self._tell = _name_of(tracker), tell
        self._write: Writer | None = None
        if is_writer(tracker):
            self._write = cast(Writer, tracker)
            return
        try:
            context = cast(Callable[[], AbstractContextManager[Writer]], tracker)()
            self._write = context.__enter__()
        except UsageError:
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
        """Leave a tracker's context. It does not stop an exception that is on its way, nor replace it."""
        try:
            context.__exit__(kind, error, traceback)
        except Exception as raised:
            if raised is not error:
                self._fail("when it was closed", raised)

    def _fail(self, when: str, error: Exception) -> None:
        log.info("the tracker %s failed %s", self._name, when, exc_info=error)
        said = f"{type(error).__name__}: {error}"
        self._tell(f"the tracker {self._name} failed {when}, and the run goes on without it: {said}")
        self._write, self._tell = None, _nobody  # it is closed at the end nonetheless, and may fail again


def as_media(package: Any, name: str, value: Any) -> Any:
    """Return a value as W&B's package, or one like it, takes it; a text as it is."""
    match value:
        case Histogram():
            return package.Histogram(np_histogram=value.bins())
        case Image():
            return package.Image(value.pixels)
        case str():
            return value
        case _:
            return as_float(name, value)


def _nobody(text: str) -> None:
    """Is told of what has been told."""


def _name_of(tracker: Any) -> str:
    while isinstance(tracker, functools.partial):
        tracker = tracker.func
    return getattr(tracker, "__qualname__", type(tracker).__qualname__)


def installed(package: str, attribute: str) -> Any:
    """Return the module `package`, which is known by an attribute.

    A run leaves folders called like its tracker behind, and those can be imported, too.

    Raises:
      UsageError: it is not installed.
    """
    try:
        found = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        found = None
    if not hasattr(found, attribute):
        raise UsageError(f"{package} is not installed.\n  Install it: pip install 'meshwright[{package}]'.")
    return found
