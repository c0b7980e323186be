"""Other kinds of stores, such as `hf://` or `hdfs://`, through fsspec and its package for that kind.

Checkpoints are not saved there, because these stores do not guarantee that only one of several concurrent
creations of an object succeeds. Only the methods for single files are used: those for several files treat
brackets in names as patterns.
"""

import importlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from meshwright.base._storage._obstore import is_key
from meshwright.base._storage._store import Entry, without_secrets
from meshwright.errors import UsageError


class Fsspec:
    """A directory of an fsspec file system as a `Store`."""

    creates = False

    def __init__(self, filesystem: Any, root: str, seconds: float | None):
        """Wrap a file system."""
        self._filesystem, self._root = filesystem, root.rstrip("/")
        self._within = {"timeout": seconds} if filesystem.async_impl and seconds else {}

    def below(self, key: str) -> list[Entry]:
        entries, folders = self.children(key)
        return entries + [entry for folder in folders for entry in self.below(folder)]

    def children(self, key: str) -> tuple[list[Entry], list[str]]:
        # Cached listings lack files that others wrote.
        self._filesystem.invalidate_cache()
        path = self._path(key)
        try:
            infos = [
                info for info in self._filesystem.ls(path, detail=True) if self._key(info).strip("/") != key
            ]
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        fit = [info for info in infos if is_key(self._key(info))]
        folders = [self._key(info) for info in fit if info["type"] == "directory"]
        return [self._entry(info) for info in fit if info["type"] == "file"], folders

    def look(self, key: str) -> Entry | None:
        try:
            info = self._filesystem.info(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return self._entry(info) if info["type"] == "file" else None

    def read(self, key: str, first: int = 0, last: int | None = None) -> tuple[memoryview, int] | None:
        if (entry := self.look(key)) is None:
            return None
        stop = entry.nbytes if last is None else min(last, entry.nbytes)
        part = self._filesystem.cat_file(self._path(key), start=first, end=stop) if first < stop else b""
        return memoryview(part), entry.nbytes

    def write(self, key: str, content: bytes | bytearray | Path) -> None:
        if isinstance(content, Path):
            self._filesystem.put_file(str(content), self._path(key), **self._within)
        else:
            self._filesystem.pipe_file(self._path(key), bytes(content), **self._within)

    def create(self, key: str, content: bytes) -> None:
        raise NotImplementedError(f"{type(self._filesystem).__name__} has no conditional creation")

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with suppress(FileNotFoundError):
                self._filesystem.rm_file(self._path(key), **self._within)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    def _key(self, info: dict[str, Any]) -> str:
        return info["name"][len(self._root) :].removeprefix("/")

    def _entry(self, info: dict[str, Any]) -> Entry:
        times = (info.get(name) for name in ("LastModified", "last_modified", "mtime", "created"))
        modified = next((time for time in times if time is not None), None)
        seconds = modified.timestamp() if isinstance(modified, datetime) else modified
        return Entry(self._key(info), info["size"], seconds if isinstance(seconds, int | float) else None)


def connect(address: str, seconds: float | None) -> Fsspec:
    """Return the store below a URL."""
    try:
        filesystem, root = importlib.import_module("fsspec.core").url_to_fs(address)
    except (ImportError, ValueError, OSError) as error:  # some connect at once
        raise UsageError(
            f"{without_secrets(address.rstrip('/'))} cannot be opened: {error}.\n  s3://, gs://, az:// and "
            "https:// need meshwright[remote]; other schemes also need fsspec's package for them. Or give a "
            "local directory."
        ) from None
    return Fsspec(filesystem, root, seconds)
