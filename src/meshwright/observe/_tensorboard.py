"""TensorBoard's event files, read and written without TensorFlow.

Other packages that write them need PyTorch or TensorFlow, keep events in a buffer, or wait for the disk at
each report. None of them reads a file up to the place where it is damaged.

An event file is a sequence of little-endian records (TensorFlow's `core/lib/io/record_writer.h`). Each
contains one `Event` protobuf:

    uint64  length
    uint32  masked CRC-32C of the length
    bytes   the event
    uint32  masked CRC-32C of the event
"""

import socket
import struct
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base._internal import local_path, masked_crc32c, protobufs
from meshwright.observe._kinds import Image, Values, as_float
from meshwright.observe._metrics import Histogram

_NUMBERS = {1: ("<f4", "float_val"), 2: ("<f8", "double_val"), 3: ("<i4", "int_val"), 9: ("<i8", "int64_val")}
"""TensorFlow's `DataType` numbers (`types.proto`): the dtype of a tensor's bytes, or its field of numbers."""


def read_scalars(directory: str | Path, name: str) -> dict[int, float]:
    """Return the values of a scalar by step; if a step has several, the one written last.

    A file is read up to its first incomplete or damaged record. A missing directory or tag is not an error,
    and gives {}: an evaluation may not have begun yet.

    Args:
      directory: The directory that TensorBoard is given as its `--logdir`.
      name: `run/tag`, as TensorBoard shows it. Both may contain slashes: the run is the first of `a`, `a/b`
        and so on that is a directory with event files. If none is, `name` is a tag in `directory` itself.

    Example:
      >>> with mw.observe.tensorboard("logs/train") as write:
      ...     write(50, {"loss": 0.25})
      >>> mw.observe.read_scalars("logs", "train/loss")
      {50: 0.25}
    """
    run, tag = _run_and_tag(local_path(directory), name)
    records = (record for path in _event_files(run) for record in _records(path, tag.encode()))
    return {
        event.step: number
        for event in map(messages()["Event"].FromString, records)
        for value in event.summary.value
        if value.tag == tag and (number := _number(value)) is not None
    }


def record(event: bytes) -> bytes:
    """Return the record of an event."""
    length = struct.pack("<Q", len(event))
    return length + masked_crc32c(length) + event + masked_crc32c(event)


_MESSAGES = {
    "Event": (
        "double wall_time = 1",
        "int64 step = 2",
        "oneof string file_version = 3",
        "oneof Summary summary = 5",
        "oneof SessionLog session_log = 7",
    ),
    "SessionLog": ("int32 status = 1",),
    "Summary": ("repeated Value value = 1",),
    "Value": (
        "string tag = 1",
        "oneof float simple_value = 2",
        "oneof Image image = 4",
        "oneof Histogram histo = 5",
        "oneof Tensor tensor = 8",
        "Metadata metadata = 9",
    ),
    "Image": (
        "int32 height = 1",
        "int32 width = 2",
        "int32 colorspace = 3",
        "bytes encoded_image_string = 4",
    ),
    "Histogram": (
        "double min = 1",
        "double max = 2",
        "double num = 3",
        "double sum = 4",
        "double sum_squares = 5",
        "repeated double bucket_limit = 6",
        "repeated double bucket = 7",
    ),
    "Tensor": (
        "int32 dtype = 1",
        "bytes tensor_content = 4",
        "repeated float float_val = 5",
        "repeated double double_val = 6",
        "repeated int32 int_val = 7",
        "repeated bytes string_val = 8",
        "repeated int64 int64_val = 10",
    ),
    "Metadata": ("PluginData plugin_data = 1",),
    "PluginData": ("string plugin_name = 1",),
}
"""The fields of each message, as in TensorFlow's `.proto` files."""


@cache
def messages() -> dict[str, Any]:
    """Return the classes of the messages in an event, by name.

    Source: `event.proto`, `summary.proto`, `tensor.proto` of github.com/tensorflow/tensorflow. Enums are
    declared as numbers here, which have the same bytes.
    """
    return protobufs.messages("tensorboard", _MESSAGES)


def _run_and_tag(directory: Path, name: str) -> tuple[Path, str]:
    parts = name.split("/")
    for i in range(1, len(parts)):
        run = directory.joinpath(*parts[:i])
        if _event_files(run):
            return run, "/".join(parts[i:])
    return directory, name


def _event_files(run: Path) -> list[Path]:
    """Return the event files in the directory `run`, in the order in which TensorBoard reads them."""
    return sorted(run.glob("*tfevents*"))


def _records(path: Path, containing: bytes) -> Iterator[bytes]:
    """Yield the records that contain these bytes. Only they are checked, as checksums take time."""
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12 and _is_intact(head):
            (length,) = struct.unpack("<Q", head[:8])
            record = file.read(length + 4)
            # The record is being written, or its writer was killed.
            if len(record) < length + 4:
                return
            # Most records of a run are of other tags.
            if containing in record:
                if not _is_intact(record):
                    return
                yield record[:-4]


def _is_intact(data: bytes) -> bool:
    """Return whether the last four bytes are the masked CRC-32C of those before them."""
    return masked_crc32c(data[:-4]) == data[-4:]


def _number(value: Any) -> float | None:
    """Return the number in a `Summary.Value`; None if it contains something else, such as a histogram."""
    if value.HasField("simple_value"):
        return value.simple_value
    dtype, field = _NUMBERS.get(value.tensor.dtype, (None, None))
    if field is None:
        return None
    content = value.tensor.tensor_content
    numbers = np.frombuffer(content, dtype) if content else getattr(value.tensor, field)
    return float(numbers[0]) if len(numbers) == 1 else None


# Of `DataType` in TensorFlow's `types.proto`.
_DT_STRING = 7
# Of `SessionLog` in TensorFlow's `event.proto`.
_START = 1


class TensorBoard:
    """A writer to one TensorBoard event file; use `tensorboard` to open one."""

    def __init__(self, directory: str | Path):
        self._messages = messages()
        nanoseconds = time.time_ns()
        # TensorBoard reads a directory's files in the order of their names; two may begin in the same second.
        name = f"events.out.tfevents.{nanoseconds // 10**9}.{socket.gethostname()}.{nanoseconds}"
        path = local_path(directory)
        path.mkdir(parents=True, exist_ok=True)
        self._file = (path / name).open("xb", buffering=0)  # `close` closes it
        self._write(file_version="brain.Event:2")

    def __call__(self, step: int, values: Values, /) -> None:
        """Write a report. TensorBoard shows texts as Markdown."""
        summary = self._messages["Summary"]()
        for name, value in values.items():
            self._add(summary.value.add(tag=name), name, value)
        self._write(step=step, summary=summary)

    def _write(self, **event: Any) -> None:
        message = self._messages["Event"](wall_time=time.time(), **event)
        self._file.write(record(message.SerializeToString()))

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
def tensorboard(
    directory: str | Path, *, resume_step: int | None = None
) -> Generator[TensorBoard, None, None]:
    """Open a writer to a new TensorBoard event file, and close it on leaving the context.

    When the writer returns, the operating system has the event: a killed process loses none. Values are
    stored as float32.

    Args:
      directory: Directory of the event file; it is created if missing. TensorBoard shows all event files in
        a directory as one run. It cannot be a URL: to report to a store, write to a directory that
        `storage.mirrored` copies there.
      resume_step: The step that a run continues from. TensorBoard then ignores later steps in earlier
        files. None keeps everything.

    Raises:
      UsageError: `directory` is a URL.

    Example:
      >>> with mw.observe.tensorboard("events") as write:
      ...     write(50, {"loss": 0.25, "sample": "Once upon a time"})
    """
    board = TensorBoard(directory)
    if resume_step is not None:
        board.forget_after(resume_step)
    try:
        yield board
    finally:
        board.close()
