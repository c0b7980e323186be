"""Writes Flax's msgpack; `readers/_flax_msgpack.py` describes how it stores arrays.

These thirty lines save users of `--to t5x` the installation of a library.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_ARRAY, _SCALAR = 1, 3
_NIL, _INT64, _BYTES, _TEXT, _LIST, _MAP, _EXT = 0xC0, 0xD3, 0xC6, 0xDB, 0xDD, 0xDF, 0xC9


def packed(value: Any) -> bytes:
    """Return dictionaries, lists, texts, integers, None and NumPy arrays as msgpack."""
    match value:
        case None:
            return bytes([_NIL])
        case int():
            return bytes([value]) if 0 <= value < 0x80 else struct.pack(">Bq", _INT64, value)
        case bytes():
            return struct.pack(">BI", _BYTES, len(value)) + value
        case str():
            text = value.encode()
            return _head(0xA0, 0x20, _TEXT, len(text)) + text
        case Mapping():
            pairs = (packed(key) + packed(item) for key, item in value.items())
            return _head(0x80, 0x10, _MAP, len(value)) + b"".join(pairs)
        case Sequence():
            return _head(0x90, 0x10, _LIST, len(value)) + b"".join(map(packed, value))
        case np.ndarray():
            content = packed([list(value.shape), value.dtype.name, value.tobytes()])
            return struct.pack(">BIB", _EXT, len(content), _ARRAY if value.ndim else _SCALAR) + content
    raise TypeError(f"{type(value)} cannot be written as msgpack")


def _head(short: int, limit: int, long: int, length: int) -> bytes:
    """Return the head of a value: kind and length in one byte if it is short, otherwise in five."""
    return bytes([short | length]) if length < limit else struct.pack(">BI", long, length)
