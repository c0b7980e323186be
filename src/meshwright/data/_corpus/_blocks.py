"""A store of tokens: documents in blocks, each of which is complete, with a checksum, or not there.

    store/
      made_of.json        the files, the tokenizer and the settings that the tokens were made of
      tokenizer.json      the tokenizer, as a text
      000000.tokens       uint32[tokens], document after document; then uint32[documents], their lengths
      000000.weights      uint8[tokens], how much each counts in the loss, if the documents are chats
      000000.json         sizes and CRC-32 of that file, and where the next block begins; written after it
      000001.tokens …
      complete.json       the number of blocks; written last
      .lock               locked by the process that writes

Each file is written atomically. Where blocks end depends only on the documents: block k has at least
2**17 · 2**k tokens, up to 2**23. So small blocks come first, and training can begin.
"""

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshwright.base._internal import crc32, fsync_directory, open_file, parse_object, read_file, write_whole
from meshwright.errors import DamagedError

FIRST_TOKENS, MOST_TOKENS = 1 << 17, 1 << 23
PRIVATE = ".new-"
"""The beginning of the names of files that are not complete."""
COMPLETE, MADE_OF, TOKENIZER = "complete.json", "made_of.json", "tokenizer.json"


class Block(NamedTuple):
    """Documents as tokens."""

    tokens: np.ndarray
    """The tokens of all documents, one after the other, uint32[num_tokens]."""
    lengths: np.ndarray
    """The number of tokens of each document, int64[num_documents]."""
    token_weights: np.ndarray | None = None
    """The weight of each token in the loss, uint8[num_tokens]; None if all count."""


class FilePosition(NamedTuple):
    """A position in the files, at which a block begins."""

    file: int
    """Number of the file."""
    number: int
    """Line or row in the file."""


def tokens_of(block: int) -> int:
    """Return the number of tokens after which a block ends with its document."""
    return min(FIRST_TOKENS << min(block, 10), MOST_TOKENS)


def write_block(
    store: Path,
    block: int,
    documents: Sequence[np.ndarray],
    end: FilePosition,
    weights: Sequence[np.ndarray] | None = None,
) -> None:
    """Write a block."""
    lengths = np.array([len(document) for document in documents], "<u4")
    tokens = np.concatenate([*documents, np.empty(0, np.int64)]).astype("<u4")
    content = tokens.tobytes() + lengths.tobytes()
    # The manifest is written last: a block without one is not complete.
    write_alone(_file(store, block), content)
    manifest = {"tokens": len(tokens), "documents": len(lengths), "crc32": crc32(content), "after": end}
    if weights is not None:
        counts = np.concatenate([*weights, np.empty(0, np.uint8)]).astype(np.uint8).tobytes()
        write_alone(_weights(store, block), counts)
        manifest["weights_crc32"] = crc32(counts)
    _write_json(_manifest(store, block), manifest)


def write_complete(store: Path, num_blocks: int) -> None:
    """Write the file that says that there are no more blocks."""
    _write_json(store / COMPLETE, {"blocks": num_blocks})


def is_written(store: Path, block: int) -> bool:
    """Return whether a block is complete."""
    return _manifest(store, block).exists()


def num_blocks(store: Path) -> int | None:
    """Return the number of blocks, or None while blocks are written."""
    path = store / COMPLETE
    return _parsed(path, "blocks")["blocks"] if path.exists() else None


def end_of_block(store: Path, block: int) -> FilePosition:
    """Return the position in the files after a block."""
    path = _manifest(store, block)
    end = _parsed(path, "after")["after"]
    numbers = end if isinstance(end, list) else []
    if len(numbers) != 2 or not all(isinstance(x, int) and x >= 0 for x in numbers):
        raise _damaged(path, f"`after` is {end!r:.40}")
    return FilePosition(*end)


def read_block(store: Path, block: int) -> Block:
    """Return a block, mapped into memory, with its checksum verified."""
    path, manifest = _file(store, block), _parsed(_manifest(store, block), "tokens", "documents", "crc32")
    try:
        with open_file(path) as file:
            content = np.memmap(file, "<u4", "r")
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if len(content) != manifest["tokens"] + manifest["documents"] or crc32(content.data) != manifest["crc32"]:
        raise _damaged(path, "its size or checksum is wrong")
    lengths = content[manifest["tokens"] :].astype(np.int64)
    if lengths.sum() != manifest["tokens"]:
        raise _damaged(path, "its lengths are wrong")
    return Block(content[: manifest["tokens"]], lengths, _read_weights(store, block, manifest))


def _read_weights(store: Path, block: int, manifest: dict[str, Any]) -> np.ndarray | None:
    if "weights_crc32" not in manifest:
        return None
    try:
        weights = np.frombuffer(read_file(_weights(store, block)), np.uint8)
    except OSError as error:
        raise _damaged(_weights(store, block), str(error)) from None
    if len(weights) != manifest["tokens"] or crc32(weights.data) != manifest["weights_crc32"]:
        raise _damaged(_weights(store, block), "its size or checksum is wrong")
    return weights


def _file(store: Path, block: int) -> Path:
    return store / f"{block:06d}.tokens"


def _weights(store: Path, block: int) -> Path:
    return store / f"{block:06d}.weights"


def _manifest(store: Path, block: int) -> Path:
    return store / f"{block:06d}.json"


def write_alone(path: Path, content: bytes) -> None:
    """Write a file atomically, also if other processes write the same file at the same time."""
    # Each writer has a name of its own, as several processes may write the same file at a time.
    private = path.with_name(f"{PRIVATE}{path.name}.{secrets.token_hex(4)}")
    write_whole(private, content)
    private.replace(path)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_alone(path, json.dumps(value).encode())
    fsync_directory(path.parent)


def _parsed(path: Path, *counts: str) -> dict[str, Any]:
    """Return the object in a file, whose `counts` are whole numbers."""
    try:
        content = parse_object(read_file(path))
        for name in counts:
            if name != "after" and not (type(content.get(name)) is int and content[name] >= 0):
                raise ValueError(f"`{name}` is {content.get(name)!r:.40}")
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    return content


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(
        f"{path} is damaged: {why}.\n  Remove {path.parent}: its tokens are then made again from the texts."
    )
