"""The file of an exported program.

    │ program: the bytes of `jax.export.Exported.serialize`    │ N bytes
    │ description: JSON, as UTF-8                               │ D bytes
    │ D, little-endian                                          │ 8 bytes
    │ CRC-32 of all bytes before it, little-endian              │ 4 bytes
    │ "MWEXPRT1"                                                │ 8 bytes

The program comes first because it is a flatbuffer, whose readers begin at its first byte and ignore what
follows: `jax.export.deserialize` takes the bytes of the whole file. docs/how-to/export.md says what is in the
description.
"""

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

from meshwright.base._internal import crc32, is_file_name, open_file, parse_object, read_file
from meshwright.errors import InputError, printable

_END = struct.Struct("<QI8s")
_MAGIC = b"MWEXPRT1"
_PART = 1 << 24


class Contents(NamedTuple):
    """The contents of the file."""

    program: bytes
    """The serialized program."""
    about: dict[str, Any]
    """The description."""


def packed(program: bytes, about: dict[str, Any]) -> list[bytes]:
    """Return the bytes of the file, in pieces."""
    description = json.dumps(about, indent=1).encode()
    length = struct.pack("<Q", len(description))
    crc = crc32(length, crc32(description, crc32(program)))
    return [program, description, length, struct.pack("<I", crc), _MAGIC]


def read(path: Path) -> Contents:
    """Return the contents of a file, after a check of its checksum."""
    try:
        content = read_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) < _END.size or content[-len(_MAGIC) :] != _MAGIC:
        raise InputError(
            f"{path} is not a file of `meshwright export`, or its end is missing: it has {len(content)} "
            f"bytes, and the last do not say {_MAGIC.decode()}.\n  Copy it again, or export it again."
        )
    length, crc, _ = _END.unpack_from(content, len(content) - _END.size)
    checked = memoryview(content)[: len(content) - 12]
    if crc32(checked) != crc:
        raise InputError(
            f"{path} is damaged: its {len(content)} bytes do not have the checksum at their end.\n"
            "  Copy it again, or export it again."
        )
    size = len(content) - _END.size - length
    try:
        if size < 0:
            raise ValueError("it is longer than the file")
        about = parse_object(content[size : size + length])
        _check_types(**about)
    except (ValueError, TypeError) as error:
        raise InputError(f"the description in {path} is not one ({printable(str(error))}).") from None
    return Contents(content[:size], about)


def _check_types(
    platforms: Any, inputs: Any, outputs: Any, constraints: Any, arrays: Any, jax: Any, **_: Any
) -> None:
    """Check that the values of a description have the types that `export` writes."""
    texts = [*platforms, *constraints, jax, *_texts(inputs), *_texts(outputs)]
    if arrays is not None:
        if not isinstance(arrays.get("file"), str) or not is_file_name(arrays["file"]):
            raise TypeError("the name of the file of the arrays is not one")
        if any(type(arrays.get(name)) is not int for name in ("bytes", "crc32")):
            raise TypeError("the size or the checksum of the arrays is not a number")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("its values have wrong types")


def _texts(described: Any) -> list[Any]:
    return list(described.values()) if isinstance(described, dict) else [described]


def crc32_of(path: Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with open_file(path) as file:
        while part := file.read(_PART):
            crc = crc32(part, crc)
    return crc
