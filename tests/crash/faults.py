"""Faults at the lowest seam: before each operation on a file, whoever asks for it.

Python announces what it is about to do with files to audit hooks, which may kill the process or refuse.
Hooks stay for the life of a process, so these are for forked ones.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

_ANNOUNCED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate"}
_SILENT = ("fsync", "write", "pwrite", "pwritev", "posix_fallocate")
"""Functions of `os` that no hook hears of."""

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000


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
def small_disk(directory: Path, num_bytes: int):
    """Mount a file system of that size at `directory`, for this process alone.

    Raises:
      PermissionError: only root may.
    """
    libc, path = ctypes.CDLL(None, use_errno=True), os.fsencode(directory)
    _checked(libc.unshare(_CLONE_NEWNS))
    _checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))  # or others would see it
    _checked(libc.mount(b"none", path, b"tmpfs", 0, f"size={num_bytes}".encode()))
    yield
    _checked(libc.umount(path))


def _checked(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def refused(reason: int) -> OSError:
    """Return the error that the system gives for `reason`."""
    return OSError(reason, os.strerror(reason))
