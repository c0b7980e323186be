"""The interface of all kinds of stores, and messages for their errors without secrets."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from meshwright.errors import MeshwrightError

_SECRET_SETTINGS = ("SECRET", "TOKEN", "KEY", "PASSWORD", "CREDENTIAL")
_SETTINGS = ("AWS_", "AZURE_", "GOOGLE_")
_SHORTEST_SECRET = 5
"""Characters. Shorter values, `true` or `1`, are no secrets, and occur in other words."""


class Entry(NamedTuple):
    """An object in a listing."""

    key: str
    nbytes: int
    modified: float | None
    """The time of its last change in seconds since 1970; None if the store does not say."""


class Store(Protocol):
    """A bucket. Keys have no empty component, and none that is `.` or `..`; listings leave out others.

    Methods may raise errors of any class; `telling` turns them into a `MeshwrightError`.
    """

    creates: bool
    """True if `create` exists, and succeeds for only one of several concurrent calls."""

    def below(self, key: str) -> list[Entry]:
        """List the objects below a key, at any depth."""
        ...

    def children(self, key: str) -> tuple[list[Entry], list[str]]:
        """List the objects directly below a key, and the keys of its directories."""
        ...

    def look(self, key: str) -> Entry | None:
        """Return the entry of an object; None if it does not exist."""
        ...

    def read(self, key: str, first: int = 0, last: int | None = None) -> tuple[memoryview, int] | None:
        """Return the bytes from `first` up to `last`, and the object's size; None if it does not exist."""
        ...

    def write(self, key: str, content: bytes | bytearray | Path) -> None:
        """Write an object, replacing one that exists. A `Path` is a local file with the content."""
        ...

    def create(self, key: str, content: bytes) -> None:
        """Write an object unless it exists."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete those of the objects that exist."""
        ...


@contextmanager
def telling(action: str) -> Iterator[None]:
    """Turn any error of a store into one that names the action, without secrets."""
    try:
        yield
    except MeshwrightError:
        raise
    except Exception as error:  # the errors of the packages have no common class
        raise MeshwrightError(f"cannot {action}: {reason_of(error)}") from None


def reason_of(error: BaseException) -> str:
    """Return the reason of a store's error, without secrets."""
    return without_secrets(_reason(error))


def without_secrets(text: str) -> str:
    """Return a text with the secrets of the environment and the credentials of URLs replaced by `***`."""
    for name, value in os.environ.items():
        is_secret = name.startswith(_SETTINGS) and any(word in name for word in _SECRET_SETTINGS)
        if is_secret and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "***")
    return re.sub(r"//[^/@\s]*@", "//***@", text)


def _reason(error: BaseException) -> str:
    """Return an error's message in one line; for an error of obstore only the useful part."""
    message, _, source = re.sub(r"^Generic \w+ error: ", "", str(error)).partition("\n\nDebug source:")
    if answer := re.search(r"status code: (\d+ [\w ]*?)(?:: (.*))?$", message, re.DOTALL):
        return f"HTTP {answer[1]}{_explanation(answer[2] or '')}"
    if "kind: Timeout" in source or isinstance(error, TimeoutError):
        return message if not source and message else "the store does not answer"
    if endpoint := re.search(r"https?://[^/\s]+", message if "kind: Connect" in source else ""):
        return f"{endpoint[0]} cannot be reached"
    return " ".join(message.split()) or type(error).__name__


def _explanation(body: str) -> str:
    """Return the code and the message in the body of an answer, which all three clouds write as XML."""
    matches = [re.search(rf"<{tag}>(.*?)</{tag}>", body, re.DOTALL) for tag in ("Code", "Message")]
    words = " ".join((": ".join(match[1] for match in matches if match) or body).split())
    return f" ({words[:200]})" if words else ""
