import io
import struct
from pathlib import Path

import pytest


class Clock:
    """A clock that goes only when told to."""

    def __init__(self, now: float = 0.0):
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Terminal(io.StringIO):
    """A text file that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


@pytest.fixture
def read_events():
    """Read the TensorBoard events in a directory, without any library but for the protobufs themselves."""
    from tensorboardX.proto.event_pb2 import Event

    def read(directory: Path) -> list:
        files = sorted(directory.glob("events.out.tfevents.*"))
        return [Event.FromString(record) for file in files for record in _records(file.read_bytes())]

    return read


def _records(data: bytes):
    # TFRecord: uint64 length, uint32 CRC of the length, the bytes, uint32 CRC of the bytes.
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[12 + length + 4 :]
