"""A run's messages, metrics and outputs. Process 0 shows messages; each process writes a log file."""

import contextlib
import json
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from meshwright.base._internal import FORMAT, print_line
from meshwright.errors import UsageError
from meshwright.observe._internal import (
    Bar,
    Histogram,
    Image,
    TensorBoard,
    Tracker,
    Writer,
    jsonl,
    open_trackers,
    tee,
    tensorboard,
)
from meshwright.processes import _internal as processes

T = TypeVar("T")

_FORMAT = "%(asctime)s %(message)s"
_NUM_SHOWN = 10


class Log:
    """The log files, metrics and trackers of a run. They close with it, or when it is garbage collected.

    Args:
      workdir: The directory of log.txt, metrics.jsonl and outputs. None writes none of them.
      events: The directory of TensorBoard's files. None writes none.
      trackers: Other writers of metrics.
      on_screen: True shows messages and progress on the screen.

    Raises:
      UsageError: A tracker's package is not installed.
    """

    def __init__(
        self, workdir: Path | None, events: Path | None, trackers: Sequence[Tracker], *, on_screen: bool
    ):
        self._workdir, self._on_screen = workdir, on_screen
        opened = contextlib.ExitStack()
        self.close = weakref.finalize(self, opened.close)
        self._logger = logger = _logger(opened, workdir, on_screen=on_screen)
        self.write, self.track, self._board = processes.on_all(
            lambda: _writers(opened, workdir, events, trackers, logger.warning)
        )
        """`write` sends metrics to all writers, `track` to the trackers only. Both act on process 0."""

    def progress(self, items: Iterable[T], total: int | None, desc: str) -> Bar[T]:
        """Return an iterator over `items` that shows a progress bar."""
        return Bar(items, total, desc, visible=self._on_screen)

    def log_info(self, info: object, title: str | None = None, step: int | None = None) -> None:
        """Write a message on the screen of process 0 and into each process's log. A title frames it."""
        self._logger.info(_framed(info, title, step))
        if title is not None and self._board is not None:
            self._board(step or 0, {title: _markdown(str(info))})

    def log_detail(self, text: str) -> None:
        """Write a text of several lines into each process's log only, not on the screen."""
        self._logger.debug("\n%s", text)

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write metrics to `workdir/metrics.jsonl` and all trackers, from process 0; see `mw.observe.Values`.

        A metric called `step` is left out, because every writer has the step.

        Raises:
          UsageError: A value is not of a kind that a report can hold.
        """
        if processes.is_lead():
            self.write(int(step), _reported({name: x for name, x in metrics.items() if name != "step"}))

    def save_outputs(self, outputs: Any, desc: str, step: int) -> None:
        """Write `outputs` to `workdir/outputs_{desc}.json`, from process 0. Arrays become lists."""
        if not processes.is_lead() or self._workdir is None:
            return
        outputs, path = plain(outputs), self._workdir / f"outputs_{desc}.json"
        path.write_text(_as_json(outputs) + "\n", encoding="utf-8")
        self.log_info(f"outputs ({desc}) are in {path}")
        if self._board is not None:
            samples = outputs[:_NUM_SHOWN] if isinstance(outputs, list) else outputs
            self._board(int(step), {"Output Samples": _markdown(_as_json(samples))})


def _framed(info: object, title: str | None, step: int | None) -> str:
    """Return `info` under a title, between rules as wide as its longest line."""
    if title is None:
        return str(info)
    heading = f"### {title}" + (f" (step {step})" if step is not None else "")
    lines = str(info).splitlines()
    width = max(map(len, [heading, *lines]))
    return "\n".join(["", "=" * width, heading, "-" * width, *lines, "=" * width])


def _markdown(text: str) -> str:
    """Return `text` so that TensorBoard, which shows Markdown, keeps its line breaks."""
    return text.replace("\n", "\n\n")


class _Screen(logging.Handler):
    """Writes to the current `sys.stderr`. A live panel replaces it by one that prints above the panel."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message."""
        print_line(self.format(record), sys.stderr)


def _logger(opened: contextlib.ExitStack, workdir: Path | None, *, on_screen: bool) -> logging.Logger:
    """Return a private logger, whose messages do not go to other loggers.

    It writes to stderr if `on_screen`, and to `workdir/log.txt`; on process 1 this is `log-1.txt`. `opened`
    closes the file. Messages of level DEBUG go to the file only.
    """
    index = jax.process_index()
    logger = logging.Logger(f"meshwright.engine._deployer.{index}", logging.DEBUG)
    handlers: list[logging.Handler] = [_Screen(logging.INFO)] if on_screen else []
    if workdir is not None:
        name = f"log-{index}.txt" if index else "log.txt"
        file = logging.FileHandler(workdir / name, delay=True, encoding="utf-8")
        file.handleError = lambda record: None  # a full disk ends the run with one message of its own
        opened.callback(file.close)
        handlers.append(file)
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT, FORMAT))
        logger.addHandler(handler)
    return logger


def _writers(
    opened: contextlib.ExitStack,
    workdir: Path | None,
    events: Path | None,
    trackers: Sequence[Tracker],
    tell: Callable[[str], None],
) -> tuple[Writer, Writer, TensorBoard | None]:
    """Return a writer to all of them, a writer to the trackers only, and the writer to TensorBoard."""
    if not processes.is_lead():
        return tee(), tee(), None
    writers: list[Writer] = []
    if workdir is not None:
        writers.append(jsonl(workdir / "metrics.jsonl"))
    board = None if events is None else opened.enter_context(tensorboard(events))
    if board is not None:
        writers.append(board)
    tracked = open_trackers(opened, *trackers, warn=tell)
    return tee(*writers, tracked), tracked, board


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=4, default=str)


def plain(value: Any) -> Any:
    """Return `value` with numbers of NumPy and JAX as Python's, arrays as lists, and keys as strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return np.asarray(value).tolist() if hasattr(value, "dtype") else value


def _reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with numbers, and arrays of one number, as floats. Other kinds are not changed.

    Raises:
      UsageError: A value is not of a kind that a report can hold.
    """
    return {
        name: value if isinstance(value, Histogram | Image | str) else _scalar(name, value)
        for name, value in metrics.items()
    }


def _scalar(name: str, value: Any) -> float:
    try:
        return float(np.asarray(value).item())
    except (TypeError, ValueError):
        raise UsageError(
            f"the metric {name!r} must be a number; it is {type(value).__name__} of shape "
            f"{np.shape(value)}.\n  Give its mean, say, or write it with log_info or save_outputs."
        ) from None
