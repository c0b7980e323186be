"""Tokens of documents that are tokenized once, in another process, while the first of them are read."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from meshwright import errors
from meshwright.base._internal import local_path, read_file, user_cache
from meshwright.data._corpus._blocks import (
    MADE_OF,
    TOKENIZER,
    Block,
    end_of_block,
    is_written,
    num_blocks,
    read_block,
    write_alone,
)
from meshwright.data._corpus._files import IN_OBJECT, File, files_of
from meshwright.data._corpus._indexed_source import IndexedSource, is_indexed_source
from meshwright.data._corpus._streams import opened
from meshwright.data._corpus._tokenizer import as_text, digest, token_id
from meshwright.errors import MeshwrightError, UsageError

_VERSION = 1
# Texts of up to so many bytes in all are known by contents, larger ones by their files.
_READ_WHOLE = 1 << 26
_POLL_SECONDS = 0.02


class Store:
    """Tokens of documents in blocks, some of which may still be written. `tokenized` makes it."""

    def __init__(self, directory: Path, digest: str, source: IndexedSource | None = None):
        self.directory = directory
        """The folder of the store."""
        self.digest = digest
        """A digest of the texts, the tokenizer and the settings: the same everywhere. Of large texts, it has
        the names and sizes alone."""
        self._source = source
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def block(self, number: int) -> Block | None:
        """Return a block, when it is there; None if there is none of this number."""
        return read_block(self.directory, number) if self.wait_for(number) else None

    def wait_for(self, number: int) -> bool:
        """Wait until a block is there, and return True; or until there are no more, and return False."""
        while True:
            if is_written(self.directory, number):
                return True
            if (total := num_blocks(self.directory)) is not None:
                return number < total
            with self._lock:
                self._see_that_somebody_works()
            time.sleep(_POLL_SECONDS)

    def _see_that_somebody_works(self) -> None:
        # A worker that has failed is not used again.
        worker, self._worker = self._worker, None
        if worker is not None and worker.is_at_work():
            self._worker = worker
        # A process of another run may write the same store already.
        elif not _is_locked(self.directory):
            self._worker = _Worker(self.directory, self._source)

    def close(self) -> None:
        """End the process that tokenizes, if it is one of this object's; what it has written stays."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()
                self._worker = None


class _Worker:
    """The process that tokenizes. It ends with this object, and with this process."""

    def __init__(self, directory: Path, source: IndexedSource | None = None):
        command = [sys.executable, "-m", "meshwright.data._corpus._work", str(directory)]
        # The other process must import this very package, also if it is not installed.
        package = str(Path(errors.__file__).parents[1])
        paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths}
        # It computes nothing with JAX, and must not take a device if a tokenizer's module imports it.
        environment |= {"JAX_PLATFORMS": "cpu"}
        pipe, self._trace = subprocess.PIPE, tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._trace, env=environment)
        self._process, self.end = process, weakref.finalize(self, _end, process, self._trace)
        self._failed: list[MeshwrightError] = []
        # The thread must not hold this object, or the finalizer would never run.
        if source is not None:
            arguments = source, process, _num_written(directory), self._failed
            threading.Thread(target=_send, args=arguments, daemon=True).start()

    def is_at_work(self) -> bool:
        """Return whether the process goes on."""
        if self._failed:
            self.end()
            raise self._failed[0]
        if (code := self._process.poll()) is None:
            return True
        output = b"" if self._process.stdout is None else self._process.stdout.read()
        self._trace.seek(0)
        trace = self._trace.read()
        self.end()
        if code:
            raise _failure(code, output.decode(errors="replace"), trace.decode(errors="replace"))
        return False


def _num_written(directory: Path) -> int:
    """Return the number of documents in the blocks that are there."""
    block = 0
    while is_written(directory, block):
        block += 1
    return end_of_block(directory, block - 1).number if block else 0


def _send(
    source: IndexedSource, process: "subprocess.Popen[bytes]", start: int, failed: list[MeshwrightError]
) -> None:
    try:
        source.send(process.stdin, start)  # type: ignore[arg-type]
    except MeshwrightError as error:
        failed.append(error)
    except (OSError, ValueError):
        # The process has ended, and its pipe is closed.
        return


def _end(process: "subprocess.Popen[bytes]", trace: IO[bytes]) -> None:
    with suppress(OSError):
        # The process ends first: closing a pipe would wait for a thread that writes into it.
        process.kill()
    for pipe in (process.stdin, process.stdout, trace):
        with suppress(OSError, ValueError):
            pipe.close()  # type: ignore[union-attr]
    process.wait()


def _failure(code: int, output: str, trace: str) -> MeshwrightError:
    try:
        error = json.loads(output.splitlines()[-1])
        return getattr(errors, error["error"])(error["message"])
    except (ValueError, LookupError, AttributeError, TypeError):
        last = trace.strip().splitlines()[-3:]
        return MeshwrightError(
            f"the process that tokenizes ended with code {code}. Its last lines:\n  " + "\n  ".join(last)
        )


def _is_locked(directory: Path) -> bool:
    try:
        with (directory / ".lock").open("r", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def tokenized(
    paths: Any,
    tokenizer: Any,
    *,
    field: str = "text",
    separator: str | None = None,
    begin: str | int | None = None,
    end: str | int | None = None,
    store: str | Path | None = None,
) -> Store:
    """Return the store of the tokens of documents. Reading a block begins or awaits its making.

    Stores are kept, and used again for the same texts, tokenizer and settings, by any number of processes.

    Example:
      >>> import tempfile, pathlib
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "a.txt").write_text("abc")
      >>> store = mw.data._internal.tokenized(folder / "a.txt", mw.lm.Bytes(), end=0, store=folder / "stores")
      >>> store.block(0).tokens.tolist()
      [97, 98, 99, 0]
    """
    root = user_cache() / "texts" if store is None else local_path(store)
    source = IndexedSource(paths, field) if is_indexed_source(paths) else None
    files, tokenizer_text = files_of(paths) if source is None else [source.file()], as_text(tokenizer)
    settings = {"field": field, "separator": separator}
    settings |= {"begin": token_id(tokenizer_text, begin), "end": token_id(tokenizer_text, end)}
    common = [_VERSION, digest(tokenizer_text), settings]
    key = _digest([*common, *_identity(files)])
    store_digest = _digest([*common, *map(_portable_identity, files)]) if _is_large(files) else key
    directory = root / key
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot keep tokens in {root}: {error.strerror} ({error.filename}). Give a folder that you may "
            "write, store=…."
        ) from None
    made_of = {
        "tokenizer": digest(tokenizer_text),
        "settings": settings,
        "files": [asdict(file) for file in files],
    }
    _put(directory / TOKENIZER, tokenizer_text.encode())
    # The same texts may lie at another path than in the run before.
    _put(directory / MADE_OF, json.dumps(made_of, indent=1).encode())
    return Store(directory, store_digest, source)


def _put(path: Path, content: bytes) -> None:
    """Write a small file, unless it has this content already, as several processes may do at a time."""
    with suppress(OSError):
        if read_file(path) == content:
            return
    write_alone(path, content)


def _portable_identity(file: File) -> list[Any]:
    """Return what tells a large file from others on all machines, whose copies have other times."""
    return [file.name, file.nbytes, *([file.version] if file.kind == IN_OBJECT else [])]


def _identity(files: list[File]) -> list[list[Any]]:
    """Return what tells the files from others: their contents, or the times of their last changes."""
    if _is_large(files):
        return [[file.name, file.nbytes, file.version] for file in files]
    if any(file.kind == IN_OBJECT for file in files):
        return [[file.kind, file.nbytes, file.version] for file in files]
    return [[file.kind, file.compression, _contents(file)] for file in files]


def _is_large(files: list[File]) -> bool:
    """Return whether the texts are too large to read all of them before each run."""
    return sum(file.nbytes for file in files) > _READ_WHOLE


def _contents(file: File) -> str:
    with opened(file) as stream:
        return hashlib.sha256(stream.read()).hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
