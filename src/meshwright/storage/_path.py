"""A place in a store, used like a `Path` as far as runs and checkpoints are concerned.

There are no directories in it, only objects with keys that contain slashes; what `Path` says of
directories is said of keys that begin with this one and a slash. There is no rename either: what is
to appear at one moment is one object, written by `create`.
"""

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Self

from meshwright.errors import MeshwrightError, UsageError
from meshwright.storage import _fsspec, _settings
from meshwright.storage._place import is_address, local_path
from meshwright.storage._store import Entry, Store, telling

_AT_ONCE = 32
"""Requests of this process, at most; each has a thread."""

_ATTEMPTS = 3


class ObjectPath:
    """An object, or all those below it."""

    def __init__(self, root: str, key: PurePosixPath, store: Store):
        """Take a key of a store that was connected to; `root` is what addresses begin with."""
        if key.is_absolute() or ".." in key.parts:
            raise UsageError(f"{root}/{key} leaves the place that it begins with: give its address.")
        self._root, self._key, self.store = root, key, store

    @classmethod
    def parse(cls, address: str) -> Self:
        """Return the place that an address like `s3://bucket/run` names. Nothing is asked of the store.

        Raises:
          UsageError: It is no such address, or what it needs is not installed.
        """
        scheme, _, rest = address.partition("://")
        _check(scheme, rest)
        root, _, key = rest.partition("/")
        root = f"{scheme}://{root}"
        return cls(root, PurePosixPath(key.strip("/")), _connect(root, _settings.PATIENCE))

    def impatient(self) -> "ObjectPath":
        """Return the same place, where requests that fail are tried again for no more than a second or so."""
        return ObjectPath(self._root, self._key, _connect(self._root, _settings.IMPATIENCE))

    def __str__(self) -> str:
        """Return the address."""
        return f"{self._root}/{self.key}" if self.key else self._root

    def __truediv__(self, key: str) -> "ObjectPath":
        """Return the place of that relative key.

        Raises:
          UsageError: It is not below this one.
        """
        return ObjectPath(self._root, self._key / key, self.store)

    @property
    def key(self) -> str:
        """Return the key within the bucket."""
        return "" if self._key == PurePosixPath() else str(self._key)

    @property
    def name(self) -> str:
        """Return the last part of the key."""
        return self._key.name

    @property
    def parent(self) -> "ObjectPath":
        """Return the place above."""
        return ObjectPath(self._root, self._key.parent, self.store)

    def mkdir(self, **_: bool) -> None:
        """Do nothing, as there are no directories."""

    def look(self) -> Entry | None:
        """Return what a listing says of the object of this key; None where there is none."""
        with telling(f"look for {self}"):
            return self.store.look(self.key) if self.key else None

    def is_file(self) -> bool:
        """Return whether there is an object of this key."""
        return self.look() is not None

    exists = is_file

    def is_dir(self) -> bool:
        """Return whether there are objects below."""
        return any(self.children())

    def children(self) -> tuple[list[Entry], list[str]]:
        """Return the objects directly below, and the keys below which there are others."""
        with telling(f"list {self}"):
            return self.store.children(self.key)

    def below(self) -> list[str]:
        """Return the keys of all objects below."""
        with telling(f"list {self}"):
            return sorted(entry.key for entry in self.store.below(self.key))

    def iterdir(self) -> Iterator["ObjectPath"]:
        """Yield what is directly below: objects, and common beginnings of keys."""
        return self.glob("*")

    def glob(self, pattern: str) -> Iterator["ObjectPath"]:
        """Yield what is below, at the depth of `pattern`, and has names like those in it."""
        start, wanted = len(self.key) + bool(self.key), pattern.split("/")
        if len(wanted) == 1:
            entries, folders = self.children()
            keys = sorted([*(entry.key for entry in entries), *folders])
        else:
            keys = self.below()
        names = (key[start:].split("/")[: len(wanted)] for key in keys)
        fitting = (each for each in names if len(each) == len(wanted) and all(map(fnmatchcase, each, wanted)))
        return (self / name for name in dict.fromkeys(map("/".join, fitting)))

    def read_bytes(self) -> bytes:
        """Return the content of a small object.

        Raises:
          FileNotFoundError: There is none.
        """
        return self.answer(self.request())

    def request(self, first: int = 0, last: int | None = None) -> "Future[Any]":
        """Ask for some of the object; `answer` awaits it, or `answer_with_size`."""
        return _threads().submit(self.store.read, self.key, first, last)

    def answer_with_size(self, requested: "Future[Any]") -> tuple[memoryview, int] | None:
        """Return the bytes that were asked for, and the size of the object; None where there is none."""
        with telling(f"read {self}"):
            return requested.result()

    def answer(self, requested: "Future[Any]") -> bytes:
        """Return the bytes that were asked for.

        Raises:
          FileNotFoundError: There is no such object.
        """
        if (found := self.answer_with_size(requested)) is None:
            raise FileNotFoundError(str(self))
        return bytes(found[0])

    def put(self, content: bytes | bytearray | Path) -> None:
        """Write an object, over another if there is one; of a `Path`, what the file holds."""
        with telling(f"write {self}"):
            self.store.write(self.key, content)

    def create(self, content: bytes) -> bool:
        """Write an object if there is none, and return whether this one is there now, by this call.

        Raises:
          MeshwrightError: It could not be written, or the store does not say whether it was.
        """
        return _create(self, content)

    def unlink(self) -> None:
        """Delete the object."""
        with telling(f"delete {self}"):
            self.store.delete([self.key])

    def remove_tree(self, pattern: str = "*") -> None:
        """Delete all objects below, or those with keys like `pattern` from there on."""
        start = len(self.key) + bool(self.key)
        doomed = [key for key in self.below() if fnmatchcase(key[start:], pattern)]
        with telling(f"delete {self}"):
            self.store.delete(doomed)


def _create(path: ObjectPath, content: bytes) -> bool:
    for _ in range(_ATTEMPTS):
        failure = _failure_to_create(path, content)
        # Asked, not concluded: a write whose answer was lost has failed, or is refused when retried.
        with telling(f"write {path}, or find out whether it was written"):
            found = path.store.read(path.key)
        if found is not None and (bytes(found[0]) == content or failure is None):
            return bytes(found[0]) == content
        if found is not None:
            break
    raise failure or MeshwrightError(f"cannot write {path}: the store says that it is there, and is not")


def _failure_to_create(path: ObjectPath, content: bytes) -> MeshwrightError | None:
    """Try to write an object, and return why it may not be there, but if the store says that one is."""
    try:
        with telling(f"write {path}"), contextlib.suppress(FileExistsError):
            path.store.create(path.key, content)
    except MeshwrightError as error:
        return error
    return None


Directory = Path | ObjectPath
"""Where checkpoints are."""


def _check(scheme: str, rest: str) -> None:
    bucket = rest.partition("/")[0]
    has_user, has_more = "@" in bucket and scheme in _settings.SCHEMES, ":" in bucket.rpartition("@")[0]
    if has_user or has_more or (":" in bucket and scheme in _settings.BUCKETS):
        # and not a word of what stands there
        raise UsageError(f"{scheme}://… holds more than a bucket; credentials belong in the environment.")
    if not rest.strip("/") or (not bucket and scheme in _settings.SCHEMES and scheme != "memory"):
        raise UsageError(f"{scheme}://{rest} names no bucket: expected {scheme}://bucket/path.")


def _connect(root: str, patience: dict[str, Any]) -> Store:
    scheme, _, bucket = root.partition("://")
    if scheme in _settings.SCHEMES:
        return _settings.connect(scheme, bucket, patience)
    seconds = patience["stalled"] if patience is _settings.IMPATIENCE else None
    return _fsspec.connect(f"{root}/", seconds)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, "storage")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked process has none of them


def write_later(path: ObjectPath, content: bytes) -> "Future[None]":
    """Write an object on a thread; what it returns raises what `put` does."""
    return _threads().submit(path.put, content)


def read_each(paths: Sequence[Directory]) -> list[bytes]:
    """Return the contents of small files: of objects, by as many requests at once as the store takes.

    Raises:
      FileNotFoundError: One is not there.
    """
    asked = [(path, path.request() if isinstance(path, ObjectPath) else None) for path in paths]
    return [
        path.answer(request) if isinstance(path, ObjectPath) and request else path.read_bytes()
        for path, request in asked
    ]


def location(path: str | Path | ObjectPath) -> Directory:
    """Return the place that `path` names: an absolute path, with `~` resolved, or one in a store.

    Raises:
      UsageError: It is an address, but not one that can be opened.
    """
    if isinstance(path, ObjectPath):
        return path
    return ObjectPath.parse(str(path)) if is_address(path) else local_path(path).absolute()
