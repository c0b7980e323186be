"""Reports as TensorBoard event files, written without TensorFlow."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from meshwright.events import import_tensorboardx

_FLUSH_SECONDS = 5


class TensorBoard:
    """A `Writer` into one event file, which takes texts, too. `tensorboard` opens it."""

    def __init__(self, directory: str | Path):
        tensorboardx = import_tensorboardx()
        self._protos = tensorboardx.proto
        # The file's own name has the second only, and its writer empties a file that is there already.
        suffix = f".{time.time_ns()}"
        self._file = tensorboardx.FileWriter(
            str(directory), flush_secs=_FLUSH_SECONDS, filename_suffix=suffix
        )

    def __call__(self, step: int, values: Mapping[str, float], /) -> None:
        """Write a report."""
        summary = self._protos.summary_pb2.Summary()
        for name, value in values.items():
            summary.value.add(tag=name, simple_value=value)
        self._file.add_summary(summary, step)

    def text(self, step: int, name: str, text: str) -> None:
        """Write a text, which TensorBoard shows as Markdown under `name`."""
        summary = self._protos.summary_pb2.Summary()
        value = summary.value.add(tag=name)
        value.metadata.plugin_data.plugin_name = "text"
        value.tensor.dtype = self._protos.types_pb2.DT_STRING
        value.tensor.string_val.append(text.encode())
        self._file.add_summary(summary, step)

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
    """Open a writer of TensorBoard scalars into a new event file in `directory`.

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
