"""A bucket of an object store, through obstore, which `meshwright[remote]` installs."""

import importlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from meshwright.base._storage._s3_listing import S3Listing
from meshwright.base._storage._store import Entry

_MULTIPART = {"chunk_size": 1 << 24, "max_concurrency": 4}
"""Larger objects are sent in parts. A part that fails is sent again, the others are not."""
_CUT_SECONDS = (0.1, 0.4, 1.6, 6.4)
"""The pauses before a listing whose answer was cut off is asked for again, which obstore does not do."""
T = TypeVar("T")


class Obstore:
    """A bucket as a `Store`."""

    def __init__(self, store: Any, lenient: S3Listing | None = None, *, creates: bool = True):
        """Wrap a store of obstore."""
        self.creates = creates
        self._obstore, self._store, self._lenient = importlib.import_module("obstore"), store, lenient
        self._errors = importlib.import_module("obstore.exceptions")

    def below(self, key: str) -> list[Entry]:
        try:
            found = self._whole(lambda: self._obstore.list(self._store, key or None).collect())
        except self._errors.InvalidPathError as error:
            return self._leniently(error, key, "")[0]
        return _entries(found, key)

    def children(self, key: str) -> tuple[list[Entry], list[str]]:
        try:
            found = self._whole(lambda: self._obstore.list_with_delimiter(self._store, key or None))
        except self._errors.InvalidPathError as error:
            return self._leniently(error, key, "/")
        return _entries(found["objects"], key), list(found["common_prefixes"])

    def _whole(self, ask: Callable[[], T]) -> T:
        """Return an answer, which is asked for again where it was cut off."""
        for seconds in _CUT_SECONDS:
            try:
                return ask()
            except self._errors.GenericError as error:
                if "kind: Interrupted" not in str(error):
                    raise
            time.sleep(seconds)
        return ask()

    def _leniently(self, error: Exception, key: str, delimiter: str) -> tuple[list[Entry], list[str]]:
        """List a bucket in which a key is no path; obstore fails on a single such key."""
        if self._lenient is None:
            text = str(error).partition("\n")[0]
            raise ValueError(f"{text}. Delete that key, or copy the others to another place") from None
        return self._lenient(key, delimiter)

    def look(self, key: str) -> Entry | None:
        try:
            return _entry(self._obstore.head(self._store, key))
        except FileNotFoundError:
            return None

    def read(self, key: str, first: int = 0, last: int | None = None) -> tuple[memoryview, int] | None:
        try:
            options = None if last is None else {"range": (first, last)}
            found = self._obstore.get(self._store, key, options=options)
            return memoryview(found.bytes()), found.meta["size"]
        except FileNotFoundError:
            return None
        except self._errors.BaseError:
            there = self.look(key) if last is not None else None
            if there is None or first < min(last or 0, there.nbytes):
                raise
            return memoryview(b""), there.nbytes  # an empty range, or one behind the end

    def write(self, key: str, content: bytes | bytearray | Path) -> None:
        self._obstore.put(self._store, key, content, **_MULTIPART)

    def create(self, key: str, content: bytes) -> None:
        try:
            self._obstore.put(self._store, key, content, mode="create", use_multipart=False)
        except self._errors.AlreadyExistsError as error:
            raise FileExistsError(str(error)) from None

    def delete(self, keys: Sequence[str]) -> None:
        if len(keys) > 1:
            self._obstore.delete(self._store, keys)
        for key in keys if len(keys) == 1 else ():
            try:
                self._obstore.delete(self._store, key)
            except FileNotFoundError:
                return


def _entries(found: Iterable[Mapping[str, Any]], key: str) -> list[Entry]:
    """Return the objects below a key, without the one of that key itself, which store consoles create."""
    start = f"{key}/" if key else ""
    return [_entry(each) for each in found if each["path"].startswith(start)]


def _entry(found: Mapping[str, Any]) -> Entry:
    return Entry(found["path"], found["size"], found["last_modified"].timestamp())
