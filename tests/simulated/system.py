"""The system's functions for files, pointed at a simulated disk by all paths below `ROOT`.

The code that is tried is the real one, with Python's own `pathlib`, `shutil` and `io` on top: only the calls
of the system are others. Each that can change the disk, or look at it, is announced to `disk.before`.
"""

import errno
import fcntl
import glob
import io
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from unittest import mock

from simulated.disk import Disk, File, Folder, refusal
from simulated.handles import Entry, Listing, RawFile, status

ROOT = Path("/simulated")
_FIRST = 1 << 20
_CREATE = os.O_CREAT | os.O_EXCL


@dataclass(eq=False)
class Opened:
    """An open file or directory."""

    node: object
    flags: int
    owner: object
    at: int = 0


class System:
    """The calls of the system, for one disk."""

    def __init__(self, disk, owner=lambda: None, where=lambda parts: parts):
        """Use a disk. `owner` returns the process that calls, and `where` the place of a path for it."""
        self.disk, self.owner, self.where = disk, owner, where
        self.opened, self._next = {}, _FIRST
        self.locks = {}
        """The open file that locks a file exclusively."""

    def end(self, owner=None):
        """Close what a process had open, as the system does when it ends; of all processes, if it is None."""
        for number in [n for n, one in self.opened.items() if owner is None or one.owner == owner]:
            self._close(number)

    def _close(self, number):
        opened = self.opened.pop(number)
        if self.locks.get(opened.node) is opened:
            del self.locks[opened.node]

    def _at(self, path, dir_fd, act):
        """Call a function with the disk and a path's parts, or with what is below an open directory."""
        if dir_fd is None or isinstance(path, Path) or path.startswith("/"):
            return act(self.disk, self.where(_parts(os.fspath(path))))
        below = type(self.disk)()
        below.root = self.opened[dir_fd].node
        return act(below, (path,))

    # Calls by path.

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        self.disk.before("open to write" if flags & (os.O_WRONLY | os.O_RDWR) else "open", path)
        if flags & os.O_DIRECT:
            raise refusal(errno.EINVAL, path)
        node = self._at(path, dir_fd, lambda disk, parts: self._found(disk, parts, flags))
        if isinstance(node, File) and flags & os.O_DIRECTORY:
            raise refusal(errno.ENOTDIR, path)
        if isinstance(node, Folder) and flags & (os.O_WRONLY | os.O_RDWR):
            raise refusal(errno.EISDIR, path)
        if flags & os.O_TRUNC and node.content:
            node.resize(0)
        self._next += 1
        self.opened[self._next] = Opened(node, flags, self.owner())
        return self._next

    @staticmethod
    def _found(disk, parts, flags):
        try:
            node = disk.find(parts)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            return disk.make(parts, File())
        if flags & _CREATE == _CREATE:
            raise refusal(errno.EEXIST, "/".join(parts))
        return node

    def mkdir(self, path, mode=0o777, *, dir_fd=None):
        self.disk.before("mkdir", path)
        self._at(path, dir_fd, lambda disk, parts: disk.make(parts, Folder()))

    def rmdir(self, path, *, dir_fd=None):
        self.disk.before("rmdir", path)
        self._at(path, dir_fd, lambda disk, parts: disk.remove(parts, Folder))

    def unlink(self, path, *, dir_fd=None):
        self.disk.before("unlink", path)
        self._at(path, dir_fd, lambda disk, parts: disk.remove(parts, File))

    def rename(self, old, new, *, src_dir_fd=None, dst_dir_fd=None):
        self.disk.before("rename", old)
        self.disk.rename(*(self.where(_parts(os.fspath(path))) for path in (old, new)))

    def stat(self, path, *, dir_fd=None, follow_symlinks=True):
        self.disk.before("stat", path)
        if isinstance(path, int):
            return status(self.opened[path].node)
        return status(self._at(path, dir_fd, Disk.find))

    def lstat(self, path, *, dir_fd=None):
        return self.stat(path, dir_fd=dir_fd)

    def access(self, path, mode, **_):
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def scandir(self, path="."):
        self.disk.before("list", path)
        node = self.opened[path].node if isinstance(path, int) else self._at(path, None, Disk.find)
        if not isinstance(node, Folder):
            raise refusal(errno.ENOTDIR, path)
        return Listing([Entry(path, name, each) for name, each in sorted(node.entries.items())])

    def listdir(self, path="."):
        return [entry.name for entry in self.scandir(path)]

    # Calls by descriptor.

    def close(self, number):
        if number in self.opened:  # otherwise its process was ended
            self._close(number)

    def fstat(self, number):
        return status(self.opened[number].node)

    def write(self, number, data):
        opened = self.opened[number]
        at = len(opened.node.content) if opened.flags & os.O_APPEND else opened.at
        opened.at = at + self.pwrite(number, data, at)
        return opened.at - at

    def pwrite(self, number, data, offset):
        self.disk.before("write", number)
        data = bytes(data)
        self.opened[number].node.write(data, offset)
        return len(data)

    def read(self, number, size):
        opened = self.opened[number]
        data = self.pread(number, size, opened.at)
        opened.at += len(data)
        return data

    def pread(self, number, size, offset):
        return bytes(self.opened[number].node.content[offset : offset + size])

    def preadv(self, number, buffers, offset):
        count = 0
        for buffer in buffers:
            data = self.pread(number, memoryview(buffer).nbytes, offset + count)
            memoryview(buffer).cast("B")[: len(data)] = data
            count += len(data)
        return count

    def posix_fallocate(self, number, offset, size):
        self.disk.before("write", number)
        node = self.opened[number].node
        node.resize(max(len(node.content), offset + size))

    def fsync(self, number):
        self.disk.before("fsync", number)
        self.opened[number].node.flush()

    def flock(self, file, how):
        number = file if isinstance(file, int) else file.fileno()
        self.disk.before("flock", number)
        opened = self.opened[number]
        if self.locks.get(opened.node, opened) is not opened:
            raise refusal(errno.EAGAIN)
        if how & fcntl.LOCK_EX:
            self.locks[opened.node] = opened

    def file(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **_):
        """Return a file object, as `open` does."""
        kind = mode.replace("b", "").replace("t", "")
        flags = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "x": os.O_WRONLY | _CREATE}
        number = path if isinstance(path, int) else self.open(path, flags[kind])
        raw = RawFile(self, number)
        if buffering == 0:
            return raw
        buffered = io.BufferedReader(raw) if kind == "r" else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


_BY_PATH = ["open", "mkdir", "rmdir", "unlink", "remove", "rename", "replace"]
_BY_PATH += ["stat", "lstat", "access", "scandir", "listdir"]
_BY_NUMBER = ["close", "fstat", "write", "pwrite", "read", "pread", "preadv", "posix_fallocate", "fsync"]
_SAME = {"remove": "unlink", "replace": "rename"}


@contextmanager
def mounted(system):
    """Show the disk of a system below `ROOT` to all threads of this process, in the block."""
    with ExitStack() as stack:
        for name in ("lstat", "scandir"):
            real, kept = getattr(os, name), getattr(glob, "_StringGlobber", None)
            now = getattr(kept, name, None)
            # Python 3.13 keeps what it found when it was imported; another system may be mounted already.
            if now is real or hasattr(now, "__wrapped__"):
                ours = staticmethod(_either(real, getattr(system, name)))
                stack.enter_context(mock.patch.object(kept, name, ours))
        for name in _BY_PATH + _BY_NUMBER:
            ours = getattr(system, _SAME.get(name, name))
            stack.enter_context(mock.patch.object(os, name, _either(getattr(os, name), ours)))
        stack.enter_context(mock.patch.object(io, "open", _either(io.open, system.file)))
        stack.enter_context(mock.patch.object(fcntl, "flock", _either(fcntl.flock, system.flock)))
        yield


def _either(real, ours):
    """Return a function that calls one of two: `ours` for what is on the simulated disk."""

    @wraps(real)
    def either(first=".", *arguments, **more):
        there = more.get("dir_fd") if more.get("dir_fd") is not None else first
        return (ours if _is_ours(there) else real)(first, *arguments, **more)

    return either


def _is_ours(there):
    if hasattr(there, "fileno"):
        there = there.fileno()
    if isinstance(there, int):
        return there >= _FIRST
    path = os.fspath(there)
    return isinstance(path, str) and path.startswith(_ROOT) and _parts(path) is not None


@cache
def _parts(path):
    """Return the parts of a path below the root; None for one that is elsewhere."""
    path = os.path.normpath(path)
    if path == _ROOT:
        return ()
    return tuple(path.split("/")[2:]) if path.startswith(_ROOT + "/") else None


_ROOT = str(ROOT)
