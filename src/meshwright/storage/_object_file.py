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
from meshwright.storage._kvstore import telling
from meshwright.storage._object_path import ObjectPath

OBJECT_BYTES = 1 << 28
"""A store takes 5 GB at once, but all of it must be in memory."""

_IN_FLIGHT = 3

_LARGEST, _PROBES = 1 << 50, 32


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
        return self.path.store.read(self.path.key, byte_range=slice(first, last))

    def request_beyond(self) -> Any:
        """Ask for the byte after its end; `is_longer` awaits the answer. Its size cannot be asked for."""
        return self.request(self.nbytes, self.nbytes + 1)

    def answer(self, requested: Any) -> bytes:
        """Return the bytes that were asked for.

        Raises:
          DamagedError: There is no such object, or it ends before.
          MeshwrightError: The store does not answer.
        """
        if (content := self._awaited(requested)) is None:
            raise DamagedError(f"{self.path} has fewer than {self.nbytes} bytes")
        return content

    def check_end(self, requested: Any) -> None:
        """Await the answer about the byte after the end.

        Raises:
          DamagedError: There is one.
          MeshwrightError: The store does not answer.
        """
        if self.has(requested):
            raise DamagedError(f"{self.path} has more than {self.nbytes} bytes")

    def has(self, requested: Any) -> bool:
        """Await what was asked for, and return whether it is there.

        Raises: as `answer`, but where the object ends before.
        """
        return self._awaited(requested) is not None

    def _awaited(self, requested: Any) -> bytes | None:
        """Return what was asked for; None where the object ends before."""
        with telling(f"read {self.path}"):
            try:
                found = requested.result()
            except ValueError as error:
                if str(error).startswith("OUT_OF_RANGE"):
                    return None
                raise
        if found.state == "missing":
            raise DamagedError(f"{self.path} is missing")
        return found.value


def parts_of(path: ObjectPath, nbytes: int) -> list[Part]:
    """Return the objects of a file of `nbytes`, in order."""
    if nbytes <= OBJECT_BYTES:
        return [Part(path, 0, nbytes)]
    return [
        Part(path.parent / f"{path.name}.{number:05d}", offset, min(OBJECT_BYTES, nbytes - offset))
        for number, offset in enumerate(range(0, nbytes, OBJECT_BYTES))
    ]


def size_of(path: ObjectPath) -> int:
    """Return the bytes of an object of which nothing says how large it is: stores do not tell.

    It is found by asking for single bytes, many at a time.

    Raises:
      FileNotFoundError: There is no such object.
      MeshwrightError: The store does not answer.
    """
    if not path.is_file():
        raise FileNotFoundError(str(path))
    sizes = range(_LARGEST)
    while len(sizes) > 1:
        step = -(-len(sizes) // _PROBES)
        asked = [Part(path, 0, size) for size in sizes[step::step]]
        requests = [part.request(part.nbytes - 1, part.nbytes) for part in asked]
        reached = sum(part.has(request) for part, request in zip(asked, requests, strict=True))
        sizes = sizes[reached * step :][:step]
    return sizes[0]


def wrong_objects(path: ObjectPath, nbytes: int) -> list[str]:
    """Return what is wrong with the objects of a file of `nbytes`: one is missing, or of another size.

    Raises:
      MeshwrightError: The store does not answer.
    """
    asked = [
        (part, part.request(part.nbytes - 1, part.nbytes), part.request_beyond())
        for part in parts_of(path, nbytes)
    ]
    wrong = []
    for part, last, beyond in asked:
        try:
            part.answer(last)
            part.check_end(beyond)
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
                _await(path, under_way.popleft())
            under_way.append(part.path.store.write(part.path.key, content))
        while under_way:
            _await(path, under_way.popleft())
    finally:
        for written in under_way:  # after an error: nothing may arrive when the attempt has been removed
            written.exception()


def _await(path: ObjectPath, written: Any) -> None:
    with telling(f"write {path}"):
        written.result()
