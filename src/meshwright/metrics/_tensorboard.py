"""Reports as TensorBoard event files, written without TensorFlow."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshwright.events import import_tensorboardx
from meshwright.metrics._histogram import Histogram
from meshwright.metrics._kinds import Image, Values, as_float

_FLUSH_SECONDS = 5


class TensorBoard:
    """A `Writer` into one event file. `tensorboard` opens it."""

    def __init__(self, directory: str | Path):
        tensorboardx = import_tensorboardx()
        self._protos = tensorboardx.proto
        # The file's own name has the second only, and its writer empties a file that is there already.
        suffix = f".{time.time_ns()}"
        self._file = tensorboardx.FileWriter(
            str(directory), flush_secs=_FLUSH_SECONDS, filename_suffix=suffix
        )

    def __call__(self, step: int, values: Values, /) -> None:
        """Write a report. TensorBoard shows texts as Markdown."""
        summary = self._protos.summary_pb2.Summary()
        for name, value in values.items():
            self._add(summary.value.add(tag=name), name, value)
        self._file.add_summary(summary, step)

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
                histogram = self._protos.summary_pb2.HistogramProto(num=counts.sum(), **facts)
                histogram.bucket_limit.extend(edges[1:])
                histogram.bucket.extend(counts)
                summary.histo.CopyFrom(histogram)
            case Image():
                height, width, channels = value.pixels.shape
                image = self._protos.summary_pb2.Summary.Image(
                    height=height, width=width, colorspace=channels
                )
                image.encoded_image_string = value.png()
                summary.image.CopyFrom(image)
            case str():
                summary.metadata.plugin_data.plugin_name = "text"
                summary.tensor.dtype = self._protos.types_pb2.DT_STRING
                summary.tensor.string_val.append(value.encode())
            case _:
                summary.simple_value = as_float(name, value)

    def forget_after(self, step: int) -> None:
        """Let TensorBoard forget what earlier files say of later steps: a run continues from `step`."""
        event_pb2 = self._protos.event_pb2
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._file.add_event(event_pb2.Event(session_log=start), step=step + 1)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._file.close()


@contextmanager
def tensorboard(directory: str | Path, *, after: int | None = None) -> Generator[TensorBoard, None, None]:
    """Open a writer into a new TensorBoard event file in `directory`.

    Events are written by a thread, and reach the disk after five seconds or on leaving the
    context: a killed process loses no more. Values are stored as float32.

    Args:
      directory: made if missing. TensorBoard shows all event files in it as one run.
      after: the step that a run continues from. TensorBoard then forgets what earlier files say
        of later steps; None lets everything stand.
    """
    board = TensorBoard(directory)
    if after is not None:
        board.forget_after(after)
    try:
        yield board
    finally:
        board.close()
