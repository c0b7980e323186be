"""The process that tokenizes: `python -m meshwright.data._corpus._work STORE`.

It writes the blocks of a store that are not there yet, and ends when all are there, when another process
writes the same store, or when its parent closes its standard input, which the system does if the parent is
killed. An error is one line of JSON on its standard output.
"""

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshwright.base._internal import parse_json, parse_object, read_file
from meshwright.data._corpus._blocks import (
    MADE_OF,
    PRIVATE,
    TOKENIZER,
    FilePosition,
    end_of_block,
    is_written,
    num_blocks,
    tokens_of,
    write_block,
    write_complete,
)
from meshwright.data._corpus._documents import Document, each_document
from meshwright.data._corpus._files import IN_OBJECT, File, files_of
from meshwright.data._corpus._readers import is_chat
from meshwright.data._corpus._tokenizer import Encoder, encoder
from meshwright.errors import ExamplesError, InputError, MeshwrightError, UsageError

# Characters that are tokenized at once at first, so that they are done soon; later eight times as many.
_TOGETHER = 1 << 18
_MOST_TOGETHER = 4096
# Blocks that training waits for. After these, training comes first.
_SOON = 2


class Tokens(NamedTuple):
    """A document as tokens."""

    tokens: np.ndarray
    """The tokens, int64[k]."""
    weights: np.ndarray
    """The weight of each in the loss, uint8[k]."""


def write_blocks(store: Path, when_urgent_are_written: Callable[[], None] = lambda: None) -> None:
    """Write the blocks of a store that are not there yet."""
    if num_blocks(store) is not None:
        return
    made_of = parse_object(read_file(store / MADE_OF))
    files = [File(**entry) for entry in made_of["files"]]
    block = 0
    # Blocks depend on the documents alone, so another process continues where the last one ended.
    while is_written(store, block):
        block += 1
    begin = end_of_block(store, block - 1) if block else FilePosition(0, 0)
    encode = encoder(read_file(store / TOKENIZER).decode())
    documents = _tokenized(files, begin, made_of["settings"], encode)
    has_weights = encode.chat is not None
    pending: list[Tokens] = []
    size = 0

    def write(end: FilePosition) -> None:
        weights = [document.weights for document in pending] if has_weights else None
        write_block(store, block, [document.tokens for document in pending], end, weights)

    for position, tokens in documents:
        pending.append(tokens)
        size += len(tokens.tokens)
        if size >= tokens_of(block):
            write(position)
            block, pending, size = block + 1, [], 0
            if block == _SOON:
                when_urgent_are_written()
    if pending:
        write(FilePosition(len(files), 0))
        block += 1
    if not block:
        others = f" and {len(files) - 1} more files" if files[1:] else ""
        raise ExamplesError(
            f"there is no text in {files[0].place}{others}: no line, or none that is not empty."
        )
    write_complete(store, block)


def _tokenized(
    files: list[File], begin: FilePosition, settings: dict[str, Any], encode: Encoder
) -> Iterator[tuple[FilePosition, Tokens]]:
    """Yield the tokens of each document from a position on, and the position after it."""
    first, last = ([] if settings[name] is None else [settings[name]] for name in ("begin", "end"))
    for number, file in list(enumerate(files))[begin.file :]:
        start = begin.number if number == begin.file else 0
        _check_unchanged(file)
        source = each_document([file], field=settings["field"], separator=settings["separator"], start=start)
        for some, encoded in _meanwhile(_together(source), encode):
            for document, tokens in zip(some, encoded, strict=True):
                if not isinstance(tokens, Tokens):
                    whole = np.concatenate([first, tokens, last]).astype(np.int64)
                    tokens = Tokens(whole, np.ones(len(whole), np.uint8))
                elif first or last:
                    raise UsageError(
                        f"{document.where}: begin= and end= are for texts, and this is a chat, whose "
                        "template writes what is before and after it.\n"
                        "  Leave them out. Texts and chats together are two sets, for mw.data.mixture."
                    )
                if len(tokens.tokens):
                    yield FilePosition(number, document.number + 1), tokens


def _check_unchanged(file: File) -> None:
    if file.kind != IN_OBJECT and files_of(file.place) != [file]:
        raise InputError(
            f"{file.place} has changed since this run began.\n  Start it again; its position will not fit."
        )


def _together(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Yield a few documents at a time."""
    some: list[Document] = []
    size, most = 0, _TOGETHER
    for document in documents:
        some.append(document)
        size += len(document.value) if isinstance(document.value, str) else 0
        if size >= most or len(some) == _MOST_TOGETHER:
            yield some
            some, size, most = [], 0, min(2 * most, 8 * _TOGETHER)
    if some:
        yield some


def _meanwhile(
    batches: Iterator[list[Document]], encode: Encoder
) -> Iterator[tuple[list[Document], list[np.ndarray | Tokens]]]:
    """Yield documents with their tokens. While some are tokenized, the next are read and the last stored."""
    # One thread tokenizes while this one reads. `tokenizers` uses all cores by itself.
    with ThreadPoolExecutor(1) as thread:
        previous = None
        for some in batches:
            under_way = some, thread.submit(_encoded, some, encode)
            if previous is not None:
                yield previous[0], previous[1].result()
            previous = under_way
        if previous is not None:
            yield previous[0], previous[1].result()


def _encoded(documents: list[Document], encode: Encoder) -> list[np.ndarray | Tokens]:
    texts = iter(encode.encode([document.value for document in documents if isinstance(document.value, str)]))
    chats = _encoded_chats([document for document in documents if is_chat(document.value)], encode)
    return [
        next(texts)
        if isinstance(document.value, str)
        else next(chats)
        if is_chat(document.value)
        else _other(document)
        for document in documents
    ]


def _other(document: Document) -> np.ndarray:
    """Return the tokens of a document that is tokens already."""
    value = document.value
    if isinstance(value, list) and all(type(x) is int and 0 <= x < 1 << 32 for x in value):
        return np.asarray(value, np.int64)
    raise ExamplesError(
        f"{document.where}: a document is a text or a list of tokens; found {type(value).__name__}, "
        f"{value!r:.60}.\n  Name the field that has it: field=…"
    )


def _encoded_chats(documents: list[Document], encode: Encoder) -> Iterator[Tokens]:
    """Yield the tokens of documents that are chats."""
    if documents and encode.chat is None:
        raise ExamplesError(
            f"{documents[0].where}: a document is a chat, which the tokenizer's template must make a text.\n"
            "  Give both: tokenizer=mw.data.chat(directory)."
        )
    chats = encode.chat.encode_each((chat.value, _tools(chat)) for chat in documents) if encode.chat else ()
    encoded = iter(chats)
    for document in documents:
        try:
            encoded_chat = next(encoded)
        except MeshwrightError as error:
            raise type(error)(f"{document.where}: {error}") from None
        yield Tokens(
            np.asarray(encoded_chat.tokens, np.int64), np.asarray(encoded_chat.token_weights, np.uint8)
        )


def _tools(document: Document) -> Any:
    """Return the tools of a chat. Tables often have them as JSON, as their schemas have no common columns."""
    if not isinstance(document.tools, str):
        return document.tools
    try:
        return parse_json(document.tools)
    except ValueError as error:
        raise ExamplesError(f"its tools are not JSON: {error}.") from None


def _locked(store: Path) -> Any:
    """Return the store's lock, or None if another process has it. Without locks, two may write the same."""
    file = (store / ".lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        return file
    # A process that was killed left these files.
    for unfinished in store.glob(f"{PRIVATE}*.tokens.*"):
        unfinished.unlink(missing_ok=True)
    return file


def _end_with_the_parent() -> None:
    # Not sys.stdin: a thread that holds its lock makes Python abort when the process ends.
    while os.read(0, 1):
        pass
    os._exit(0)


def _give_way() -> None:
    """Let the processes that train go first."""
    with suppress(OSError):
        os.nice(5)


def main(store: Path) -> None:
    """Write a store, as the only process that does."""
    # If the parent sends the documents, `received` sees that the parent ends.
    files = parse_object(read_file(store / MADE_OF))["files"]
    if not any(file["kind"] == IN_OBJECT for file in files):
        threading.Thread(target=_end_with_the_parent, daemon=True).start()
    lock = _locked(store)
    if lock is None:
        return
    try:
        write_blocks(store, _give_way)
    except MeshwrightError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
        sys.exit(error.exit_code)
    except OSError as error:
        print(json.dumps({"error": InputError.__name__, "message": f"{store}: {error}"}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
