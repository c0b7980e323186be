"""What is asked of a store, whatever kind it is of."""

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
"""Characters. Shorter values, `true` or `1`, are no secrets, and stand in other words."""


class Entry(NamedTuple):
    """An object, as a listing has it."""

    key: str
    nbytes: int
    modified: float | None
    """Seconds since 1970; None where the store does not say."""


class Store(Protocol):
    """A bucket. Keys have no empty part, and no `.` or `..`; what a store has of others is left out.

    What fails raises errors of any class, which `telling` puts into words.
    """

    creates: bool
    """`create` is there, and one of several that create an object wins."""

    def below(self, key: str) -> list[Entry]:
        """List the objects below a key, at any depth."""
        ...

    def children(self, key: str) -> tuple[list[Entry], list[str]]:
        """List the objects directly below a key, and the keys below which there are others."""
        ...

    def look(self, key: str) -> Entry | None:
        """Return what a listing says of an object; None where there is none."""
        ...

    def read(self, key: str, first: int = 0, last: int | None = None) -> tuple[memoryview, int] | None:
        """Return some bytes of an object, fewer where it ends before, and its size; None if there is none."""
        ...

    def write(self, key: str, content: bytes | bytearray | Path) -> None:
        """Write an object, over another if there is one. A `Path` is a file whose content it gets."""
        ...

    def create(self, key: str, content: bytes) -> None:
        """Write an object if there is none.

        Raises:
          FileExistsError: The store says that there is one, which may be this one if it was asked twice.
        """
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, as far as they are there."""
        ...


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Say of what goes wrong in a store what was tried, in our words and without secrets.

    Raises:
      MeshwrightError: Something did.
    """
    try:
        yield
    except MeshwrightError:
        raise
    except Exception as error:  # the packages' errors have no class in common
        raise MeshwrightError(f"cannot {what}: {told(error)}") from None


def told(error: BaseException) -> str:
    """Return why a store failed, without secrets."""
    return without_secrets(_reason(error))


def without_secrets(text: str) -> str:
    """Return a text without the secrets of the environment, and without those of addresses."""
    for name, value in os.environ.items():
        is_secret = name.startswith(_SETTINGS) and any(word in name for word in _SECRET_SETTINGS)
        if is_secret and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "***")
    return re.sub(r"//[^/@\s]*@", "//***@", text)


def _reason(error: BaseException) -> str:
    """Return what an error says, in one line; of obstore's the part that tells something."""
    said, _, source = re.sub(r"^Generic \w+ error: ", "", str(error)).partition("\n\nDebug source:")
    if answer := re.search(r"status code: (\d+ [\w ]*?)(?:: (.*))?$", said, re.DOTALL):
        return f"HTTP {answer[1]}{_explanation(answer[2] or '')}"
    if "kind: Timeout" in source or isinstance(error, TimeoutError):
        return said if not source and said else "the store does not answer"
    if endpoint := re.search(r"https?://[^/\s]+", said if "kind: Connect" in source else ""):
        return f"{endpoint[0]} cannot be reached"
    return " ".join(said.split()) or type(error).__name__


def _explanation(body: str) -> str:
    """Return what the body of an answer explains: in XML, as all three clouds write, a code and a message."""
    found = [re.search(rf"<{tag}>(.*?)</{tag}>", body, re.DOTALL) for tag in ("Code", "Message")]
    words = " ".join((": ".join(each[1] for each in found if each) or body).split())
    return f" ({words[:200]})" if words else ""
