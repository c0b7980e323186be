"""A disk that forgets: after a power loss it has what was flushed, and any part of what was not.

A file is its content as programs see it, the content that was flushed last, and the writes since then. A
directory is the same for its entries. When the power fails, of the changes since the last flush any may be
lost, and a write may be cut anywhere: POSIX promises no order among them, though many file systems keep one.
A rename within a directory is one change, which happens as a whole or not at all.

`system.py` lets programs use it in place of the real one.
"""

import errno
import itertools
import os
import stat
from dataclasses import dataclass, field


def refusal(number, path=""):
    """Return the error that the system gives."""
    return OSError(number, os.strerror(number), str(path))


_numbers = itertools.count(1)


@dataclass(eq=False)
class File:
    """The bytes of a file; `writes` are pairs of an offset and bytes, or of a size and None."""

    content: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""
    writes: list = field(default_factory=list)
    links: int = 0
    number: int = field(default_factory=lambda: next(_numbers))
    mode = stat.S_IFREG | 0o644

    def write(self, data, offset):
        change = offset, bytes(data)
        _apply(self.content, *change)
        self.writes.append(change)

    def resize(self, size):
        _apply(self.content, size, None)
        self.writes.append((size, None))

    def flush(self):
        self.flushed, self.writes = bytes(self.content), []

    def lose(self, drawn):
        kept = bytearray(self.flushed)
        for offset, data in self.writes:
            whole = drawn.random() < 0.5
            if data is None and whole:
                _apply(kept, offset, None)
            elif data is not None and (whole or drawn.random() < 0.5):
                _apply(kept, offset, data if whole else data[: drawn.randrange(len(data) + 1)])
        self.content = kept
        self.flush()


def _apply(content, offset, data):
    size = offset if data is None else max(len(content), offset + len(data))
    del content[size:]
    content.extend(bytes(size - len(content)))
    if data is not None:
        content[offset : offset + len(data)] = data


@dataclass(eq=False)
class Folder:
    """The entries of a directory; `changes` map names to what they became, or to None."""

    entries: dict = field(default_factory=dict)
    flushed: dict = field(default_factory=dict)
    changes: list = field(default_factory=list)
    links: int = 0
    number: int = field(default_factory=lambda: next(_numbers))
    mode = stat.S_IFDIR | 0o755

    def change(self, change):
        for name, node in change.items():
            if before := self.entries.get(name):
                before.links -= 1
            if node:
                node.links += 1
        _update(self.entries, change)
        self.changes.append(change)

    def flush(self):
        self.flushed, self.changes = dict(self.entries), []

    def lose(self, drawn):
        kept = dict(self.flushed)
        for change in self.changes:
            if drawn.random() < 0.5:
                _update(kept, change)
        self.entries = kept
        self.flush()
        for node in kept.values():
            node.links = 1
            node.lose(drawn)


def _update(entries, change):
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class Disk:
    """Files and directories below a root, which is always there."""

    def __init__(self):
        self.root = Folder(links=1)
        self.before = lambda operation, path: None
        """Called before each operation; it may raise, or do other things first."""

    def lose_power(self, drawn):
        """Forget what was not flushed, or any part of it."""
        self.root.lose(drawn)

    def find(self, parts):
        """Return the file or directory at a path, as its parts below the root."""
        node = self.root
        for number, part in enumerate(parts):
            if not isinstance(node, Folder):
                raise refusal(errno.ENOTDIR, "/".join(parts))
            if (node := node.entries.get(part)) is None:
                raise refusal(errno.ENOENT, "/".join(parts[: number + 1]))
        return node

    def folder(self, parts):
        """Return the directory that has or would have an entry, and the name of the entry."""
        if not parts:
            raise refusal(errno.EBUSY)
        node = self.find(parts[:-1])
        if not isinstance(node, Folder):
            raise refusal(errno.ENOTDIR, "/".join(parts))
        return node, parts[-1]

    def make(self, parts, node):
        folder, name = self.folder(parts)
        if name in folder.entries:
            raise refusal(errno.EEXIST, "/".join(parts))
        if not folder.links:
            raise refusal(errno.ENOENT, "/".join(parts))
        folder.change({name: node})
        return node

    def remove(self, parts, kind):
        folder, name = self.folder(parts)
        node = self.find(parts)
        if not isinstance(node, kind):
            raise refusal(errno.ENOTDIR if kind is Folder else errno.EISDIR, "/".join(parts))
        if kind is Folder and node.entries:
            raise refusal(errno.ENOTEMPTY, "/".join(parts))
        folder.change({name: None})

    def rename(self, old, new):
        node, (source, name), (target, new_name) = self.find(old), self.folder(old), self.folder(new)
        there = target.entries.get(new_name)
        if there is node:
            return
        if isinstance(there, Folder):
            if not isinstance(node, Folder):
                raise refusal(errno.EISDIR, "/".join(new))
            if there.entries:
                raise refusal(errno.ENOTEMPTY, "/".join(new))
        elif there and isinstance(node, Folder):
            raise refusal(errno.ENOTDIR, "/".join(new))
        if source is target:
            source.change({name: None, new_name: node})
        else:
            target.change({new_name: node})
            source.change({name: None})
