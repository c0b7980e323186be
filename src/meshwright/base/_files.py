"""Files and JSON: read safely, as anybody may have written or damaged them; written atomically and durably.

Reading: Python's JSON parser raises several kinds of errors (ValueError, RecursionError, UnicodeDecodeError),
and accepts values nested so deeply that other functions cannot walk through them. Here there is one kind of
error. Writing: after a power cut a file is complete, or does not exist.
"""

import errno
import json
import os
import resource
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from meshwright.errors import UsageError

DEEPEST = 100
"""Largest depth of nested values: far more than programs write, and less than Python's limit of recursion."""


def read_file(path: Path) -> bytes:
    """Return the content of a file."""
    with open_file(path) as file:
        return file.read()


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading."""
    if not stat.S_ISREG(path.stat().st_mode):
        # The number of a pipe, which is in `OF_THE_MACHINE`: commands then say it in one sentence.
        raise OSError(errno.ESPIPE, "is not an ordinary file", str(path))
    return path.open("rb")


def parse_json(content: str | bytes) -> Any:
    """Return the value of a JSON text. It may be nested deeply: call `check_depth` to refuse that."""
    try:
        if isinstance(content, bytes):
            content = content.decode(json.detect_encoding(content), "surrogatepass")
        return _DECODER.decode(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _with_keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"an object has the key {next(x for x in keys if keys.count(x) > 1)!r:.80} twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_with_keys_once)


def parse_object(content: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a text."""
    value = parse_json(content)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {value!r:.40}")
    check_depth(value)
    return value


def check_unicode(text: str) -> None:
    r"""Check that a text has no half of a surrogate pair: `\ud800` is valid in JSON, but not in UTF-8."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f"character {error.start + 1} is {half}, half of a surrogate pair") from None


def check_depth(value: Any) -> None:
    """Check that recursive functions can walk through a value of JSON."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        containers = (
            x.values() if isinstance(x, Mapping) else x for x in level if isinstance(x, Mapping | list)
        )
        level = [inner for container in containers for inner in container]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file atomically, and flush it and its directory to the disk."""
    write_one_of_many(path, content)
    fsync_directory(path.parent)


def write_one_of_many(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file as `write_whole` does, but leave it to the caller to flush its directory.

    After a power cut before that, the file is complete, or is as it was before, or does not exist.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def open_ordinary(path: Path, flags: int) -> int:
    """Open an ordinary file, as `os.open` does, and return its descriptor. It does not wait for a pipe."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_ordinary(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_ordinary(path)
    return descriptor


def _not_ordinary(path: Path) -> OSError:
    return OSError(errno.EINVAL, "is a link, a pipe or a device where an ordinary file belongs", str(path))


def make_directory(path: Path) -> None:
    """Create a directory and its parents as needed, and flush the entries that lead to it.

    Those that exist are flushed, too: a process may have been killed after it created them. It ends at the
    root of the file system, or below a directory that this process may not change.
    """
    path.mkdir(parents=True, exist_ok=True)
    for parent in path.resolve().parents:
        if not os.access(parent, os.R_OK | os.W_OK):
            break
        fsync_directory(parent)
        if parent.is_mount():
            break


def fsync_directory(path: Path) -> None:
    """Flush a directory to the disk, so that a power cut cannot undo created, renamed or removed files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FILES, _FILES_A_PROCESS = 20, 3
"""The open files of process 0 of a run: its own, and those for each process."""


def allow_files_of(num_processes: int) -> None:
    """Let this process, and those that it starts, open as many files as process 0 of a run does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, unlimited = _FILES + _FILES_A_PROCESS * num_processes, resource.RLIM_INFINITY
    if hard != unlimited and hard < needed:
        raise UsageError(
            f"process 0 of {num_processes} opens some {needed} files, and may open {hard}: ulimit -n "
            f"{2 * needed}"
        )
    if soft != unlimited and soft < 2 * needed:
        wished = 2 * needed if hard == unlimited else min(2 * needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wished), hard))


def advice(error: OSError) -> str:
    """Return the advice for too many open files, with a blank at its end; "" for other errors."""
    if error.errno != errno.EMFILE:
        return ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"This process may open {soft} files at a time: try ulimit -n {max(hard, 2 * soft)}. "
