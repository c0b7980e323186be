"""Faults at the lowest seams: before an operation on a file, whoever asks for it, and before a line.

Python announces what it is about to do with files to audit hooks, which may kill the process or refuse.
Hooks stay for the life of a process, so these are for forked ones.
"""

import ctypes
import itertools
import linecache
import os
import stat
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import meshwright.checkpoints

_ANNOUNCED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate"}

_SILENT = ("fsync", "write", "pwrite", "pwritev", "posix_fallocate")
"""Functions of `os` that no hook hears of."""

_CHECKPOINTS = str(Path(meshwright.checkpoints.__file__).parent)

_CLONE_NEWNS, _MNT_DETACH = 0x20000, 2
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 0x20, 0x1000, 0x4000, 0x40000


def before_each_file_operation(directory: Path, act: Callable[[str], None]) -> None:
    """Call `act` with the name of each operation on what is in `directory`, from now on."""

    def hook(event: str, arguments: tuple) -> None:
        if event in _ANNOUNCED and _is_below(arguments[0], directory):
            act(event)

    sys.addaudithook(hook)
    for name in _SILENT:
        setattr(os, name, _announcing(getattr(os, name), act))


def _is_below(path: object, directory: Path) -> bool:
    """Return whether an operation's path is in the directory; what is relative is, as in `rmtree`."""
    if isinstance(path, int):
        return False
    text = os.fsdecode(path)  # type: ignore[arg-type]
    return not text.startswith("/") or text.startswith(f"{directory}/")


def _announcing(function: Callable, act: Callable[[str], None]) -> Callable:
    def announced(descriptor: int, *arguments):
        if descriptor > 2 and not _is_pipe(descriptor):
            act(function.__name__)
        return function(descriptor, *arguments)

    return announced


def _is_pipe(descriptor: int) -> bool:
    return stat.S_ISFIFO(os.fstat(descriptor).st_mode)


@contextmanager
def before_line(number: int, act: Callable[[], object]):
    """Call `act` before a line of `checkpoints` that this thread runs, counted from 0. It may raise.

    Not before `with`, as that line is run once more at the end of its block: there Python lets no
    signal come between the block and the release of a lock, and neither may we.
    """

    lines = itertools.count()

    def trace(frame, event, _):
        path = frame.f_code.co_filename
        if not path.startswith(_CHECKPOINTS):
            return None
        if event != "line" or linecache.getline(path, frame.f_lineno).lstrip().startswith("with "):
            return trace
        if next(lines) == number:
            act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def small_disk(directory: Path, num_bytes: int):
    """Mount a file system of that size at `directory`, for this process alone.

    Raises:
      PermissionError: only root may.
    """
    with _own_mount(directory) as mount:
        mount(b"none", b"tmpfs", 0, f"size={num_bytes}".encode())
        yield


@contextmanager
def read_only(directory: Path):
    """Let `directory` be only read, if root asks for it by this process alone."""
    if os.geteuid():
        directory.chmod(0o500)
        yield
        directory.chmod(0o700)
        return
    with _own_mount(directory) as mount:
        mount(os.fsencode(directory), None, _MS_BIND)
        mount(b"none", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
        yield


@contextmanager
def _own_mount(directory: Path):
    """Return a function that mounts at `directory`, unseen by others: `mount(source, type, flags, data)`."""
    libc, path = ctypes.CDLL(None, use_errno=True), os.fsencode(directory)

    def mount(source, kind, flags, data=None):
        _checked(libc.mount(source, path, kind, flags, data))

    _checked(libc.unshare(_CLONE_NEWNS))
    _checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    try:
        yield mount
    finally:
        libc.umount2(path, _MNT_DETACH)


def _checked(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def refused(reason: int) -> OSError:
    """Return the error that the system gives for `reason`."""
    return OSError(reason, os.strerror(reason))
