"""A place in an object store, used like a `Path` where a directory of checkpoints is concerned.

There are no directories in it, only objects with keys that contain slashes; what `Path` says of
directories is said of keys that begin with this one and a slash. There is no rename either: what is
to appear at one moment is one object, written by `create`.
"""

import secrets
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Self

from meshwright.addresses import is_address, local_path
from meshwright.errors import MeshwrightError, UsageError
from meshwright.storage._kvstore import SCHEMES, connect, telling


class ObjectPath:
    """An object, or all those below it."""

    def __init__(self, scheme: str, bucket: str, key: PurePosixPath, store: Any):
        """Take a key of a bucket that was connected to."""
        self._scheme, self._bucket, self._key, self.store = scheme, bucket, key, store

    @classmethod
    def parse(cls, address: str) -> Self:
        """Return the place that an address like `s3://bucket/run` names. Nothing is asked of the store.

        Raises:
          UsageError: It is no such address, or TensorStore is not installed.
        """
        scheme, _, rest = address.partition("://")
        bucket, _, key = rest.partition("/")
        if "@" in bucket or ":" in bucket:  # and not a word of what stands there
            raise UsageError(f"{scheme}://… holds more than a bucket; credentials belong in the environment.")
        if scheme not in SCHEMES or not bucket:
            raise UsageError(
                f"{address} is neither a directory nor the address of an object store: "
                "expected s3://bucket/path, gs://bucket/path, or memory://name/path for tests.\n"
                "  Checkpoints may be elsewhere than the rest of a run: checkpoints.directory."
            )
        return cls(scheme, bucket, PurePosixPath(key.strip("/")), connect(scheme, bucket))

    def __str__(self) -> str:
        """Return the address."""
        return f"{self._scheme}://{self._bucket}/{self.key}".rstrip("/")

    def __truediv__(self, key: str) -> "ObjectPath":
        """Return the place of that relative key."""
        return ObjectPath(self._scheme, self._bucket, self._key / key, self.store)

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
        return ObjectPath(self._scheme, self._bucket, self._key.parent, self.store)

    def mkdir(self, **_: bool) -> None:
        """Do nothing, as there are no directories."""

    def is_file(self) -> bool:
        """Return whether there is an object of this key."""
        with telling(f"look for {self}"):
            return self.key in self._list(self.key, self.key + "\0")

    def exists(self) -> bool:
        """Return whether there is an object of this key."""
        return self.is_file()

    def is_dir(self) -> bool:
        """Return whether there are objects below."""
        return bool(self.below())

    def below(self) -> list[str]:
        """Return the keys of all objects below."""
        prefix = self._prefix()
        with telling(f"list {self}"):
            return self._list(prefix, prefix[:-1] + "0" if prefix else "")  # "0" is the next after "/"

    def iterdir(self) -> Iterator["ObjectPath"]:
        """Yield what is directly below: objects, and common beginnings of keys."""
        return self.glob("*")

    def glob(self, pattern: str) -> Iterator["ObjectPath"]:
        """Yield what is below, at the depth of `pattern`, and has names like those in it."""
        start, wanted = len(self._prefix()), pattern.split("/")
        names = (key[start:].split("/")[: len(wanted)] for key in self.below())
        fitting = (each for each in names if len(each) == len(wanted) and all(map(fnmatchcase, each, wanted)))
        return (self / name for name in dict.fromkeys(map("/".join, fitting)))

    def read_bytes(self) -> bytes:
        """Return the content of a small object.

        Raises:
          FileNotFoundError: There is none.
        """
        return self.answer(self.request())

    def request(self) -> Any:
        """Ask for the content of a small object; `answer` awaits it."""
        return self.store.read(self.key)

    def answer(self, requested: Any) -> bytes:
        """Return the content that was asked for.

        Raises:
          FileNotFoundError: There is no such object.
        """
        with telling(f"read {self}"):
            found = requested.result()
        if found.state == "missing":
            raise FileNotFoundError(str(self))
        return found.value

    def put(self, content: bytes) -> None:
        """Write a small object, over another if there is one."""
        with telling(f"write {self}"):
            self.store.write(self.key, content).result()

    def create(self, content: bytes) -> bool:
        """Write an object if there is none, and return whether this one is there now, by this call.

        Raises:
          MeshwrightError: It could not be written, or the store does not say whether it was.
        """
        failure = None
        try:
            with telling(f"write {self}"):
                absent = self.store.read(self.key).result()
                if absent.state == "missing":
                    self.store.write(self.key, content, if_equal=absent.stamp.generation).result()
        except MeshwrightError as error:
            failure = error
        # Asked, not concluded: a write whose answer was lost has failed, or is refused when it is retried.
        with telling(f"find out whether {self} was written, so it may be there"):
            is_there = self.store.read(self.key).result().value == content
        if failure and not is_there:
            raise failure
        return is_there

    def unlink(self) -> None:
        """Delete the object."""
        with telling(f"delete {self}"):
            self.store.write(self.key, None).result()

    def remove_tree(self, pattern: str = "*") -> None:
        """Delete all objects below, or those with keys like `pattern` from there on."""
        start = len(self._prefix())
        with telling(f"delete {self}"):
            doomed = [key for key in self.below() if fnmatchcase(key[start:], pattern)]
            for deleted in [self.store.write(key, None) for key in doomed]:
                deleted.result()

    def impatient(self) -> "ObjectPath":
        """Return the same place, where requests that fail are tried again for no more than a second or so."""
        store = connect(self._scheme, self._bucket, patient=False)
        return ObjectPath(self._scheme, self._bucket, self._key, store)

    def probe(self) -> None:
        """Write, look for, read and delete an object, without much patience.

        A typing error in the name of a bucket must be an error, and not look like a directory without
        checkpoints, from which training would begin anew.

        Raises:
          UsageError: Something of this cannot be done.
        """
        probe = self.impatient() / f".probe-{secrets.token_hex(4)}"
        try:
            probe.put(b"written")
            probe.is_file()
            probe.read_bytes()
            probe.unlink()
        except (MeshwrightError, FileNotFoundError) as error:
            raise UsageError(
                f"{self} cannot be used: {error}\n  Mend the address, the endpoint (AWS_ENDPOINT_URL) or the "
                "credentials; they must allow to write, read, list and delete."
            ) from None

    def _prefix(self) -> str:
        return f"{self.key}/" if self.key else ""

    def _list(self, first: str, end: str) -> list[str]:
        import tensorstore

        keys = self.store.list(tensorstore.KvStore.KeyRange(first, end)).result()
        return sorted(key.decode() for key in keys)


Directory = Path | ObjectPath
"""Where checkpoints are."""


def read_each(paths: Sequence[Directory]) -> list[bytes]:
    """Return the contents of small files: of objects, by as many requests at once as the store takes.

    Raises:
      FileNotFoundError: One is not there.
    """
    asked = [path.request() if isinstance(path, ObjectPath) else None for path in paths]
    return [
        path.answer(request) if isinstance(path, ObjectPath) else path.read_bytes()
        for path, request in zip(paths, asked, strict=True)
    ]


def location(path: str | Path | ObjectPath) -> Directory:
    """Return the place that `path` names: an absolute path, with `~` resolved, or one in an object store.

    Raises:
      UsageError: It is an address, but not of an object store that can be used.
    """
    if isinstance(path, ObjectPath):
        return path
    return ObjectPath.parse(str(path)) if is_address(path) else local_path(path).absolute()
