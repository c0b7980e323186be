"""A run's messages, on the screen of one process and in a file of each; its metrics and its outputs."""

import contextlib
import json
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from meshwright import process
from meshwright.deployer._plain import plain, reported
from meshwright.metrics import (
    Bar,
    TensorBoard,
    Tracker,
    Writer,
    jsonl,
    open_trackers,
    tee,
    tensorboard,
)
from meshwright.times import FORMAT

T = TypeVar("T")

_FORMAT = "%(asctime)s %(message)s"
_NUM_SHOWN = 10


class Log:
    """The places that a run tells of itself in. It closes them when it is closed, or nobody has it any more.

    Args:
      workdir: where log.txt, metrics.jsonl and outputs go.
      events: where TensorBoard's files go.
      on_screen: whether messages and progress are shown.

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
        self.write, self.track, self._board = process.on_all(
            lambda: _writers(opened, workdir, events, trackers, logger.warning)
        )
        """`write` sends metrics to all places and `track` to trackers, both from process 0 alone."""

    def progress(self, items: Iterable[T], total: int | None, desc: str) -> Bar[T]:
        """Return an iterator over `items` that shows on the screen how many were taken."""
        return Bar(items, total, desc, shown=self._on_screen)

    def log_info(self, info: object, title: str | None = None, step: int | None = None) -> None:
        """Tell `info`, framed if it has a title: on the screen of process 0 and in each process's log."""
        self._logger.info(framed(info, title, step))
        if title is not None and self._board is not None:
            self._board(step or 0, {title: markdown(str(info))})

    def log_detail(self, text: str) -> None:
        """Write a text of several lines into each process's log, and not on the screen."""
        self._logger.debug("\n%s", text)

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write metrics to `workdir/metrics.jsonl` and all trackers, from process 0; see `mw.metrics.Values`.

        One called `step` is left out: all places have the step already.

        Raises:
          UsageError: One is nothing that a report may hold.
        """
        if process.is_lead():
            self.write(int(step), reported({name: x for name, x in metrics.items() if name != "step"}))

    def save_outputs(self, outputs: Any, desc: str, step: int) -> None:
        """Write `outputs` to `workdir/outputs_{desc}.json`, numbers as numbers; from process 0."""
        if not process.is_lead() or self._workdir is None:
            return
        outputs, path = plain(outputs), self._workdir / f"outputs_{desc}.json"
        path.write_text(_as_json(outputs) + "\n")
        self.log_info(f"outputs ({desc}) are in {path}")
        if self._board is not None:
            some = outputs[:_NUM_SHOWN] if isinstance(outputs, list) else outputs
            self._board(int(step), {"Output Samples": markdown(_as_json(some))})


def framed(info: object, title: str | None, step: int | None) -> str:
    """Return `info` with a title above it, between lines as wide as its longest."""
    if title is None:
        return str(info)
    heading = f"### {title}" + (f" (step {step})" if step is not None else "")
    lines = str(info).splitlines()
    width = max(map(len, [heading, *lines]))
    return "\n".join(["", "=" * width, heading, "-" * width, *lines, "=" * width])


def markdown(text: str) -> str:
    """Return `text` as TensorBoard, which takes it for Markdown, keeps it in lines."""
    return text.replace("\n", "\n\n")


class _Screen(logging.Handler):
    """Writes to stderr as it is at the moment: that of a live panel writes above it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message."""
        print(self.format(record), file=sys.stderr, flush=True)


def _logger(opened: contextlib.ExitStack, workdir: Path | None, *, on_screen: bool) -> logging.Logger:
    """Return a logger of its own, which no other has handlers of and which hands nothing on.

    It writes to stderr, if `on_screen`, and to `workdir/log.txt`, or for process 1 `log-1.txt`, which
    `opened` closes. Details are for the file alone.
    """
    index = jax.process_index()
    made = logging.Logger(f"meshwright.deployer.{index}", logging.DEBUG)
    handlers: list[logging.Handler] = [_Screen(logging.INFO)] if on_screen else []
    if workdir is not None:
        file = logging.FileHandler(workdir / (f"log-{index}.txt" if index else "log.txt"), delay=True)
        opened.callback(file.close)
        handlers.append(file)
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT, FORMAT))
        made.addHandler(handler)
    return made


def _writers(
    opened: contextlib.ExitStack,
    workdir: Path | None,
    events: Path | None,
    trackers: Sequence[Tracker],
    tell: Callable[[str], None],
) -> tuple[Writer, Writer, TensorBoard | None]:
    """Return a writer to all places for metrics; that to trackers; and that to TensorBoard.

    `tell` is told of a tracker that fails, and is put aside.
    """
    if not process.is_lead():
        return tee(), tee(), None
    found: list[Writer] = []
    if workdir is not None:
        found.append(jsonl(workdir / "metrics.jsonl"))
    board = None if events is None else opened.enter_context(tensorboard(events))
    if board is not None:
        found.append(board)
    tracked = open_trackers(opened, *trackers, tell=tell)
    return tee(*found, tracked), tracked, board


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=4, default=str)
