"""What a run tells: messages, framed, on the screen of one process and in a file of each; and metrics."""

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from meshwright import process
from meshwright.metrics import TensorBoard, Tracker, Writer, jsonl, open_trackers, tee, tensorboard

_FORMAT = "[%(asctime)s - meshwright - process %(process_index)d of %(processes)d] %(message)s"


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


def logger(opened: contextlib.ExitStack, workdir: Path | None, *, on_screen: bool) -> logging.Logger:
    """Return a logger of its own, which no other has handlers of and which hands nothing on.

    It writes to stderr, if `on_screen`, and to `workdir/log.txt`, or for process 1 `log-1.txt`, which
    `opened` closes.
    """
    index = jax.process_index()
    made = logging.Logger(f"meshwright.deployer.{index}", logging.INFO)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)] if on_screen else []
    if workdir is not None:
        file = logging.FileHandler(workdir / (f"log-{index}.txt" if index else "log.txt"), delay=True)
        opened.callback(file.close)
        handlers.append(file)
    about = {"process_index": index, "processes": jax.process_count()}
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT, "%m/%d/%Y %H:%M:%S", defaults=about))
        made.addHandler(handler)
    return made


def metrics_writers(
    opened: contextlib.ExitStack,
    workdir: Path | None,
    events: Path | None,
    trackers: Sequence[Tracker],
    tell: Callable[[str], None],
) -> tuple[Writer, Writer, TensorBoard | None]:
    """Return a writer to all places for metrics, which `opened` closes; that to trackers; and to TensorBoard.

    On processes other than 0 the writer does nothing.

    Args:
      workdir: where `metrics.jsonl` goes.
      events: where TensorBoard's files go.
      tell: is told of a tracker that fails, and is put aside.

    Raises:
      UsageError: a tracker's package is not installed.
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
