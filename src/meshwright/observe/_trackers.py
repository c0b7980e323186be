"""Trackers: writers to other services. Their packages are optional, and their failures do not end a run."""

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, cast

from meshwright.base._internal import import_extra, not_installed, num_required
from meshwright.errors import UsageError
from meshwright.observe._histogram import Histogram
from meshwright.observe._kinds import Image, Values, as_float
from meshwright.observe._writers import Writer, tee

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


def open_trackers(opened: ExitStack, *trackers: Tracker, tell: Callable[[str], None]) -> Writer:
    """Open trackers and return one writer to all of them.

    A tracker that raises, when it is opened, written to or closed, is not used any more.
    """
    return tee(*(_PutAside(tracker, opened, tell) for tracker in trackers))


class _PutAside:
    """A writer to a tracker that stops writing once the tracker has failed."""

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
        """Leave a tracker's context, without suppressing or replacing an exception of the run."""
        try:
            context.__exit__(kind, error, traceback)
        except Exception as raised:
            if raised is not error:
                self._fail("when it was closed", raised)

    def _fail(self, when: str, error: Exception) -> None:
        log.info("the tracker %s failed %s", self._name, when, exc_info=error)
        said = f"{type(error).__name__}: {error}"
        self._tell(f"the tracker {self._name} failed {when}; the run continues without it: {said}")
        self._write, self._tell = None, _nobody  # it is still closed at the end, and may fail again


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


def _nobody(text: str) -> None:
    """Ignore a message, as the first one has been shown."""


def _name_of(tracker: Any) -> str:
    while isinstance(tracker, functools.partial):
        tracker = tracker.func
    return getattr(tracker, "__qualname__", type(tracker).__qualname__)


def installed(package: str, attribute: str) -> Any:
    """Return the module of an installed package that has this attribute.

    The attribute tells the package from a folder of the same name, such as runs of a tracker leave behind:
    Python can import those, too.
    """
    tracker = f"mw.observe.{package}"
    module = import_extra(package, extra=package, what=tracker)
    if not hasattr(module, attribute):
        raise not_installed(package, extra=package, what=tracker)
    return module
