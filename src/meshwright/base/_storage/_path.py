"""A path in an object store, with the methods of `Path` that runs and checkpoints need.

A store has no directories, only objects whose keys contain slashes. A directory here is a key that other keys
begin with, followed by a slash. There is no rename either: a change that must be atomic is one object,
written by `create`.
"""

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Self

from meshwright.base._files import read_file
from meshwright.base._storage import _fsspec, _settings
from meshwright.base._storage._local_paths import is_address, local_path
from meshwright.base._storage._store import Entry, Store, telling
from meshwright.errors import MeshwrightError, UsageError

_AT_ONCE = 32
"""The most concurrent requests of this process; each has a thread."""

_ATTEMPTS = 3


class ObjectPath:
    """A path in a store: an object, or a directory of objects. `location` or `parse` make one from a URL."""

    def __init__(self, root: str, key: PurePosixPath, store: Store):
        if key.is_absolute() or ".." in key.parts:
            raise UsageError(f"{root}/{key} leaves the directory that it begins with: give its full URL.")
        self._root, self._key, self.store = root, key, store

    @classmethod
    def parse(cls, address: str) -> Self:
        """Return the path of a URL such as `s3://bucket/run`. Nothing is requested from the store."""
        check_address(address)
        scheme, _, rest = address.partition("://")
        root, _, key = rest.partition("/")
        root = f"{scheme}://{root}"
        return cls(root, PurePosixPath(key.strip("/")), _connect(root, _settings.PATIENCE))

    def impatient(self) -> "ObjectPath":
        """Return the same path, with failed requests tried again for a few seconds only."""
        return ObjectPath(self._root, self._key, _connect(self._root, _settings.IMPATIENCE))

    def __str__(self) -> str:
        """Return the URL."""
        return f"{self._root}/{self.key}" if self.key else self._root

    def __truediv__(self, key: str) -> "ObjectPath":
        """Return the path of a relative key. A key that leaves this path is a `UsageError`."""
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
        """Return the path of the directory above."""
        return ObjectPath(self._root, self._key.parent, self.store)

    def mkdir(self, **_: bool) -> None:
        """Do nothing, as there are no directories."""

    def look(self) -> Entry | None:
        """Return the size and time of the object; None if it does not exist."""
        with telling(f"look for {self}"):
            return self.store.look(self.key) if self.key else None

    def is_file(self) -> bool:
        """Return whether the object exists."""
        return self.look() is not None

    exists = is_file

    def is_dir(self) -> bool:
        """Return whether there are objects below this path."""
        return any(self.children())

    def children(self) -> tuple[list[Entry], list[str]]:
        """Return the objects directly below this path, and the keys of its directories."""
        with telling(f"list {self}"):
            return self.store.children(self.key)

    def below(self) -> list[str]:
        """Return the keys of all objects below this path."""
        with telling(f"list {self}"):
            return sorted(entry.key for entry in self.store.below(self.key))

    def iterdir(self) -> Iterator["ObjectPath"]:
        """Yield the objects and directories directly below this path."""
        return self.glob("*")

    def glob(self, *patterns: str) -> Iterator["ObjectPath"]:
        """Yield the paths below this one, at a pattern's depth, that match it: `step_*/manifest.json`.

        The store is asked once for all patterns.
        """
        start, split_patterns = len(self.key) + bool(self.key), [pattern.split("/") for pattern in patterns]
        if all(len(pattern) == 1 for pattern in split_patterns):
            entries, folders = self.children()
            keys = sorted([*(entry.key for entry in entries), *folders])
        else:
            keys = self.below()
        parts = (key[start:].split("/") for key in keys)
        fitting = (
            match
            for key_parts in parts
            for pattern in split_patterns
            if (match := _beginning(key_parts, pattern))
        )
        return (self / name for name in dict.fromkeys(map("/".join, fitting)))

    def read_bytes(self) -> bytes:
        """Return the content of a small object, or raise `FileNotFoundError`."""
        return self.answer(self.request())

    def request(self, first: int = 0, last: int | None = None) -> "Future[Any]":
        """Request the bytes from `first` up to `last`, or to the end; `answer` waits for them."""
        return _threads().submit(self.store.read, self.key, first, last)

    def answer_with_size(self, requested: "Future[Any]") -> tuple[memoryview, int] | None:
        """Return the bytes requested by `request`, and the object's size; None if it does not exist."""
        with telling(f"read {self}"):
            return requested.result()

    def answer(self, requested: "Future[Any]") -> bytes:
        """Return the bytes that were requested by `request`, or raise `FileNotFoundError`."""
        if (response := self.answer_with_size(requested)) is None:
            raise FileNotFoundError(str(self))
        return bytes(response[0])

    def put(self, content: bytes | bytearray | Path) -> None:
        """Write the object, replacing one that exists. A `Path` is a local file with the content."""
        with telling(f"write {self}"):
            self.store.write(self.key, content)

    def create(self, content: bytes) -> bool:
        """Write the object unless it exists, and return whether this call wrote it."""
        failure: MeshwrightError | None = None
        for _ in range(_ATTEMPTS):
            failure = self._failure_to_create(content)
            # Read back, as the answer alone does not tell: a write whose answer was lost looks like a
            # failure, and is refused when it is retried.
            with telling(f"write {self}, or find out whether it was written"):
                stored = self.store.read(self.key)
            if stored is not None and (bytes(stored[0]) == content or failure is None):
                return bytes(stored[0]) == content
            if stored is not None:
                break
        unreadable = f"cannot write {self}: the store says that it exists, yet it cannot be read"
        raise failure or MeshwrightError(unreadable)

    def _failure_to_create(self, content: bytes) -> MeshwrightError | None:
        """Try to create the object; return the error, or None if it was written or exists already."""
        try:
            with telling(f"write {self}"), contextlib.suppress(FileExistsError):
                self.store.create(self.key, content)
        except MeshwrightError as error:
            return error
        return None

    def unlink(self) -> None:
        """Delete the object."""
        with telling(f"delete {self}"):
            self.store.delete([self.key])

    def remove_tree(self, pattern: str = "*") -> None:
        """Delete all objects below this path, or those whose relative keys match `pattern`."""
        start = len(self.key) + bool(self.key)
        doomed = [key for key in self.below() if fnmatchcase(key[start:], pattern)]
        with telling(f"delete {self}"):
            self.store.delete(doomed)


def _beginning(parts: list[str], pattern: list[str]) -> list[str]:
    """Return the first parts of a key if they match a pattern, or nothing."""
    beginning = parts[: len(pattern)]
    return beginning if len(beginning) == len(pattern) and all(map(fnmatchcase, beginning, pattern)) else []


Directory = Path | ObjectPath
"""A local directory or one in a store."""


def check_address(address: str) -> None:
    """Check the form of a URL of a store. Nothing is requested, and no package is needed."""
    scheme, _, rest = address.partition("://")
    bucket = rest.partition("/")[0]
    has_user, has_more = "@" in bucket and scheme in _settings.SCHEMES, ":" in bucket.rpartition("@")[0]
    if has_user or has_more or (":" in bucket and scheme in _settings.BUCKETS):
        # The text is not shown, as it may hold a secret.
        raise UsageError(
            f"{scheme}://… has credentials or a port before the path; expected {scheme}://bucket/path. "
            "Credentials belong in the environment."
        )
    if not rest.strip("/") or (not bucket and scheme in _settings.SCHEMES and scheme != "memory"):
        raise UsageError(f"{scheme}://{rest} has no bucket: expected {scheme}://bucket/path.")


def _connect(root: str, patience: dict[str, Any]) -> Store:
    scheme, _, bucket = root.partition("://")
    if scheme in _settings.SCHEMES:
        return _settings.connect(scheme, bucket, patience)
    seconds = patience["stalled"] if patience is _settings.IMPATIENCE else None
    return _fsspec.connect(f"{root}/", seconds)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_ONCE, "storage")


# A forked process inherits no threads.
os.register_at_fork(after_in_child=_threads.cache_clear)


def write_later(path: ObjectPath, content: bytes) -> "Future[None]":
    """Write an object on a thread; the future raises what `put` does."""
    return _threads().submit(path.put, content)


def read_each(paths: Sequence[Directory]) -> list[bytes]:
    """Return the contents of files, which may be anybody's; those in stores are requested concurrently."""
    requests = [(path, path.request() if isinstance(path, ObjectPath) else None) for path in paths]
    return [
        path.answer(request) if isinstance(path, ObjectPath) and request else read_file(Path(str(path)))
        for path, request in requests
    ]


def location(path: str | Path | ObjectPath) -> Directory:
    """Return an absolute local path, with `~` resolved, or a path in a store."""
    if isinstance(path, ObjectPath):
        return path
    return ObjectPath.parse(str(path)) if is_address(path) else local_path(path).absolute()
