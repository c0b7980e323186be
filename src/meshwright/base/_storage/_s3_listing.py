"""A listing of S3 that skips keys which are no paths, such as `a//b` or `a/../b`.

obstore fails to list a bucket with a single such key, and anyone who may write to the bucket can create one.
So this module sends the list requests itself, with URLs that obstore signs. obstore signs only the URLs of
objects: the endpoint given to it is therefore the whole query.
"""

import http.client
import importlib
import logging
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote_plus, urlencode
from xml.etree import ElementTree

from meshwright.base._storage._store import Entry
from meshwright.errors import printable

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
            entries += [_entry(each, plain) for each in page.iterfind("{*}Contents")]
            folders += [plain(_text(each, "Prefix")) for each in page.iterfind("{*}CommonPrefixes")]
            token = page.findtext("{*}NextContinuationToken")
            more = {"continuation-token": token} if token else None
        for wrong in [each for each in (*(entry.key for entry in entries), *folders) if not is_key(each)]:
            log.warning("%s is left out: its key is no relative path of a file", printable(wrong, keep=""))
        kept = [each for each in entries if is_key(each.key) and not each.key.endswith("/")]
        return kept, [folder.removesuffix("/") for folder in folders if is_key(folder)]

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


def _entry(found: ElementTree.Element, plain: Callable[[str], str]) -> Entry:
    modified = datetime.fromisoformat(_text(found, "LastModified").replace("Z", "+00:00"))
    return Entry(plain(_text(found, "Key")), int(_text(found, "Size")), modified.timestamp())


def _text(found: ElementTree.Element, tag: str) -> str:
    return found.findtext(f"{{*}}{tag}") or ""
