"""What the simulated system hands to a program: open files, entries of directories, and what `stat` tells."""

import io
import os

from simulated.disk import File, Folder

_DEVICE = 0xD15C


class RawFile(io.RawIOBase):
    """An open file without a buffer."""

    def __init__(self, system, number):
        self._system, self._number = system, number
        self._can_write = bool(system.opened[number].flags & (os.O_WRONLY | os.O_RDWR))

    def fileno(self):
        return self._number

    def readable(self):
        return not self._can_write

    def writable(self):
        return self._can_write

    def seekable(self):
        return True

    def seek(self, offset, whence=0):
        opened = self._system.opened[self._number]
        opened.at = offset + (0, opened.at, len(opened.node.content))[whence]
        return opened.at

    def readinto(self, buffer):
        data = self._system.read(self._number, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data):
        if self._number not in self._system.opened:
            return len(data)  # the buffer of a dead process, which nobody writes any more
        return self._system.write(self._number, data)

    def close(self):
        if not self.closed:
            super().close()
            self._system.close(self._number)


class Listing(list):
    """The entries of a directory, as `os.scandir` gives them."""

    def __enter__(self):
        return iter(self)

    def __exit__(self, *_):
        pass

    def close(self):
        pass


class Entry:
    """An entry of a directory."""

    def __init__(self, folder, name, node):
        self.name, self._node = name, node
        self.path = name if isinstance(folder, int) else f"{folder}/{name}"

    def __fspath__(self):
        return self.path

    def is_dir(self, *, follow_symlinks=True):
        return isinstance(self._node, Folder)

    def is_file(self, *, follow_symlinks=True):
        return isinstance(self._node, File)

    def is_symlink(self):
        return False

    def is_junction(self):
        return False

    def stat(self, *, follow_symlinks=True):
        return status(self._node)

    def inode(self):
        return self._node.number


def status(node):
    """Return what `os.stat` tells of a file or directory."""
    size = len(node.content) if isinstance(node, File) else 0
    return os.stat_result((node.mode, node.number, _DEVICE, node.links, os.geteuid(), 0, size, 0, 0, 0))
