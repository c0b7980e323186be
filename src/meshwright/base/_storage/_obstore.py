"""A bucket of an object store, through obstore, which `meshwright[remote]` installs.

obstore fails to list a bucket of S3 with a key that is no path, such as `a//b` or `a/../b`, and anyone who
may write to the bucket can create one. So `S3Listing` sends the list requests itself, with URLs that
obstore signs. obstore signs only the URLs of objects: the endpoint given to it is therefore the whole
query.
"""

import http.client
import importlib
import logging
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote_plus, urlencode
from xml.etree import ElementTree

from meshwright.base._storage._store import Entry
from meshwright.errors import printable

_MULTIPART = {"chunk_size": 1 << 24, "max_concurrency": 4}
"""Larger objects are sent in parts. A part that fails is sent again, the others are not."""
_CUT_SECONDS = (0.1, 0.4, 1.6, 6.4)
"""The pauses before a listing whose answer was cut off is asked for again, which obstore does not do."""
T = TypeVar("T")


class Obstore:
    """A bucket as a `Store`."""

    def __init__(self, store: Any, lenient: "S3Listing | None" = None, *, creates: bool = True):
        """Wrap a store of obstore."""
        self.creates = creates
        self._obstore, self._store, self._lenient = importlib.import_module("obstore"), store, lenient
        self._errors = importlib.import_module("obstore.exceptions")

    def below(self, key: str) -> list[Entry]:
        try:
            objects = self._whole(lambda: self._obstore.list(self._store, key or None).collect())
        except self._errors.InvalidPathError as error:
            return self._leniently(error, key, "")[0]
        return _entries(objects, key)

    def children(self, key: str) -> tuple[list[Entry], list[str]]:
        try:
            listing = self._whole(lambda: self._obstore.list_with_delimiter(self._store, key or None))
        except self._errors.InvalidPathError as error:
            return self._leniently(error, key, "/")
        return _entries(listing["objects"], key), list(listing["common_prefixes"])

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
            response = self._obstore.get(self._store, key, options=options)
            return memoryview(response.bytes()), response.meta["size"]
        except FileNotFoundError:
            return None
        except self._errors.BaseError:
            entry = self.look(key) if last is not None else None
            if entry is None or first < min(last or 0, entry.nbytes):
                raise
            # An empty range, or one behind the end.
            return memoryview(b""), entry.nbytes

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


def _entries(objects: Iterable[Mapping[str, Any]], key: str) -> list[Entry]:
    """Return the objects below a key, without the one of that key itself, which store consoles create."""
    start = f"{key}/" if key else ""
    return [_entry(item) for item in objects if item["path"].startswith(start)]


def _entry(item: Mapping[str, Any]) -> Entry:
    return Entry(item["path"], item["size"], item["last_modified"].timestamp())


log = logging.getLogger("meshwright")

_SECONDS, _PAUSES = 60, (0.1, 0.5, 2, 8, 30, 60, 60)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_key(key: str) -> bool:
    """Return whether a key is a valid path."""
    parts = key.removesuffix("/").split("/")
    return not any(part in ("", ".", "..") for part in parts) and not _CONTROL.search(key)


class S3Listing:
    """Lists a bucket of S3."""

    def __init__(self, opened: Callable[..., Any], url: str):
        self._opened, self._url = opened, url

    def __call__(self, key: str, delimiter: str) -> tuple[list[Entry], list[str]]:
        """Return the objects below a key and, given a delimiter, the folders; keys left out are logged."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": f"{key}/" if key else ""}
        query |= {"delimiter": delimiter} if delimiter else {}
        entries, folders, more = [], [], {}
        while more is not None:
            page = self._page(query | more)
            plain = unquote_plus if page.findtext("{*}EncodingType") == "url" else str
            entries += [_listed_entry(element, plain) for element in page.iterfind("{*}Contents")]
            folders += [plain(_tag_text(element, "Prefix")) for element in page.iterfind("{*}CommonPrefixes")]
            token = page.findtext("{*}NextContinuationToken")
            more = {"continuation-token": token} if token else None
        for wrong in [key for key in (*(entry.key for entry in entries), *folders) if not is_key(key)]:
            log.warning("%s is left out: its key is no relative path of a file", printable(wrong, keep=""))
        valid = [entry for entry in entries if is_key(entry.key) and not entry.key.endswith("/")]
        return valid, [folder.removesuffix("/") for folder in folders if is_key(folder)]

    def _page(self, query: dict[str, str]) -> ElementTree.Element:
        endpoint = f"{self._url}?{urlencode(query)}&end="
        store = self._opened(aws_endpoint_url_s3=endpoint, virtual_hosted_style_request=True)
        url = importlib.import_module("obstore").sign(store, "GET", "", timedelta(seconds=10 * _SECONDS))
        for pause in (*_PAUSES, None):
            try:
                with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
                    return ElementTree.fromstring(answer.read())
            except (OSError, http.client.HTTPException, ElementTree.ParseError) as error:
                is_refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if is_refused or pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError


def _listed_entry(element: ElementTree.Element, plain: Callable[[str], str]) -> Entry:
    modified = datetime.fromisoformat(_tag_text(element, "LastModified").replace("Z", "+00:00"))
    return Entry(plain(_tag_text(element, "Key")), int(_tag_text(element, "Size")), modified.timestamp())


def _tag_text(element: ElementTree.Element, tag: str) -> str:
    return element.findtext(f"{{*}}{tag}") or ""
