"""A file in an object store: one object or, where it is large, several that put together are the file.

data-00000-of-00002.zarr.zip            up to 256 MiB
data-00001-of-00002.zarr.zip.00000      more
data-00001-of-00002.zarr.zip.00001
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from meshwright.errors import DamagedError
from meshwright.storage._path import ObjectPath, write_later

OBJECT_BYTES = 1 << 28
"""A store takes 5 GB at once, but all of it must be in memory."""

_IN_FLIGHT = 3


@dataclass(frozen=True)
class Part:
    """One of the objects."""

    path: ObjectPath
    offset: int
    """Where it begins in the file."""
    nbytes: int
    """How large it should be."""

    def request(self, first: int, last: int) -> Any:
        """Ask for some of its bytes; `answer` awaits them."""
        return self.path.request(first, last)

    def answer(self, requested: Any) -> memoryview:
        """Return the bytes that were asked for.

        Raises:
          DamagedError: There is no such object, or it is of another size.
          MeshwrightError: The store does not answer.
        """
        found = self.path.answer_with_size(requested)
        if found is None:
            raise DamagedError(f"{self.path} is missing")
        content, nbytes = found
        if nbytes != self.nbytes:
            raise DamagedError(
                f"{self.path} has {'fewer' if nbytes < self.nbytes else 'more'} than {self.nbytes} bytes"
            )
        return content


def parts_of(path: ObjectPath, nbytes: int) -> list[Part]:
    """Return the objects of a file of `nbytes`, in order."""
    if nbytes <= OBJECT_BYTES:
        return [Part(path, 0, nbytes)]
    return [
        Part(path.parent / f"{path.name}.{number:05d}", offset, min(OBJECT_BYTES, nbytes - offset))
        for number, offset in enumerate(range(0, nbytes, OBJECT_BYTES))
    ]


def wrong_objects(path: ObjectPath, nbytes: int) -> list[str]:
    """Return what is wrong with the objects of a file of `nbytes`: one is missing, or of another size.

    Raises:
      MeshwrightError: The store does not answer.
    """
    asked = [(part, part.request(0, 1)) for part in parts_of(path, nbytes)]
    wrong = []
    for part, requested in asked:
        try:
            part.answer(requested)
        except DamagedError as error:
            wrong.append(str(error))
    return wrong


def put_parts(path: ObjectPath, nbytes: int, contents: Iterable[bytes | bytearray]) -> None:
    """Write a file of `nbytes`, given the contents of its objects in order, which are copied.

    Raises:
      MeshwrightError: The store does not take them.
    """
    under_way: deque[Any] = deque()
    try:
        for part, content in zip(parts_of(path, nbytes), contents, strict=True):
            if len(under_way) == _IN_FLIGHT:
                under_way.popleft().result()
            under_way.append(write_later(part.path, bytes(content)))
        while under_way:
            under_way.popleft().result()
    finally:
        for written in under_way:  # after an error: nothing may arrive when the attempt has been removed
            written.exception()
