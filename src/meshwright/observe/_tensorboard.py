"""Reports as TensorBoard event files, written without TensorFlow."""

import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshwright.base._internal import local_path
from meshwright.observe._events import messages, record
from meshwright.observe._histogram import Histogram
from meshwright.observe._kinds import Image, Values, as_float

_DT_STRING, _START = (
    7,
    1,
)  # of `DataType` in TensorFlow's `types.proto`, and of `SessionLog` in its `event.proto`


class TensorBoard:
    """A writer to one TensorBoard event file; use `tensorboard` to open one."""

    def __init__(self, directory: str | Path):
        self._messages = messages()
        now = time.time_ns()
        # TensorBoard reads a directory's files in the order of their names; two may begin in the same second.
        name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now}"
        place = local_path(directory)
        place.mkdir(parents=True, exist_ok=True)
        self._file = (place / name).open("xb", buffering=0)  # `close` closes it
        self._write(file_version="brain.Event:2")

    def __call__(self, step: int, values: Values, /) -> None:
        """Write a report. TensorBoard shows texts as Markdown."""
        summary = self._messages["Summary"]()
        for name, value in values.items():
            self._add(summary.value.add(tag=name), name, value)
        self._write(step=step, summary=summary)

    def _write(self, **event: Any) -> None:
        made = self._messages["Event"](wall_time=time.time(), **event)
        self._file.write(record(made.SerializeToString()))

    def _add(self, summary: Any, name: str, value: Any) -> None:
        """Fill in a `Summary.Value`, of TensorFlow's `core/framework/summary.proto`."""
        match value:
            case Histogram():
                counts, edges = value.bins()
                facts = {
                    "min": value.min,
                    "max": value.max,
                    "sum": value.sum,
                    "sum_squares": value.sum_squares,
                }
                histogram = self._messages["Histogram"](num=counts.sum(), **facts)
                histogram.bucket_limit.extend(edges[1:])
                histogram.bucket.extend(counts)
                summary.histo.CopyFrom(histogram)
            case Image():
                height, width, channels = value.pixels.shape
                image = self._messages["Image"](height=height, width=width, colorspace=channels)
                image.encoded_image_string = value.png()
                summary.image.CopyFrom(image)
            case str():
                summary.metadata.plugin_data.plugin_name = "text"
                summary.tensor.dtype = _DT_STRING
                summary.tensor.string_val.append(value.encode())
            case _:
                summary.simple_value = as_float(name, value)

    def forget_after(self, step: int) -> None:
        """Make TensorBoard ignore later steps in earlier files, as a run continues from `step`."""
        self._write(step=step + 1, session_log=self._messages["SessionLog"](status=_START))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def tensorboard(directory: str | Path, *, after: int | None = None) -> Generator[TensorBoard, None, None]:
    """Open a writer to a new TensorBoard event file, and close it on leaving the context.

    When the writer returns, the operating system has the event: a killed process loses none. Values are
    stored as float32.

    Args:
      directory: Directory of the event file; it is created if missing. TensorBoard shows all event files in
        a directory as one run. It cannot be a URL: to report to a store, write to a directory that
        `storage.mirrored` copies there.
      after: The step that a run continues from. TensorBoard then ignores later steps in earlier files. None
        keeps everything.

    Raises:
      UsageError: `directory` is a URL.

    Example:
      >>> with mw.observe.tensorboard("events") as write:
      ...     write(50, {"loss": 0.25, "sample": "Once upon a time"})
    """
    board = TensorBoard(directory)
    if after is not None:
        board.forget_after(after)
    try:
        yield board
    finally:
        board.close()
