"""Reports as TensorBoard event files, written without TensorFlow."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from meshwright.events import import_tensorboardx
from meshwright.metrics._writers import Writer

_FLUSH_SECONDS = 5


@contextmanager
def tensorboard(directory: str | Path, *, after: int | None = None) -> Generator[Writer, None, None]:
    """Open a writer of TensorBoard scalars into a new event file in `directory`.

    Events are written by a thread, and reach the disk after five seconds or on leaving the
    context: a killed process loses no more. Values are stored as float32.

    Args:
      directory: made if missing. TensorBoard shows all event files in it as one run.
      after: the step that a run continues from. TensorBoard then forgets what earlier files say
        of later steps; None lets everything stand.
    """
    tensorboardx = import_tensorboardx()
    protos = tensorboardx.proto
    # The file's own name has the second only, and its writer empties a file that is there already.
    suffix = f".{time.time_ns()}"
    events = tensorboardx.FileWriter(str(directory), flush_secs=_FLUSH_SECONDS, filename_suffix=suffix)
    if after is not None:
        start = protos.event_pb2.SessionLog(status=protos.event_pb2.SessionLog.START)
        events.add_event(protos.event_pb2.Event(session_log=start), step=after + 1)

    def write(step: int, values: Mapping[str, float], /) -> None:
        summary = protos.summary_pb2.Summary()
        for name, value in values.items():
            summary.value.add(tag=name, simple_value=value)
        events.add_summary(summary, step)

    try:
        yield write
    finally:
        events.close()
