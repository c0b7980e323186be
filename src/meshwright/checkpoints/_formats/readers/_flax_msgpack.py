"""Reads trees in Flax's msgpack, and locates their arrays without reading them.

    {"params": {"w": <ext 1>}, "step": <ext 3>}

    ext 1  an array          msgpack again: [shape, dtype's name, bytes in C order]
    ext 2  a complex number  [real, imaginary]
    ext 3  a NumPy scalar    in the same form as an array

An array of more than 2^30 bytes is split into one-dimensional arrays in a map:
`{"__msgpack_chunked_array__": true, "shape": {"0": 8, "1": 4}, "chunks": {"0": <ext 1>, …}}`.

The msgpack library is not used, because it reads all values. This reader reads only the bytes between the
arrays, however large the file is.

Source: github.com/msgpack/msgpack/blob/master/spec.md; `serialization.py` of github.com/google/flax.
"""

import math
import operator
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from meshwright.base._internal import Directory
from meshwright.checkpoints._arrays._lazy import LazyArray, concatenate
from meshwright.checkpoints._formats.readers._file import File, head, raw_array

_CHUNKED = "__msgpack_chunked_array__"
_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_LENGTHS = {1: ">B", 2: ">H", 4: ">I"}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_EXTS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
_KEY_AT = {0xDE: 3, 0xDF: 5}
"""The offset of a map's first key, after the bytes with the number of its entries; 1 for other kinds."""


def is_map(file: Directory) -> bool:
    """Return whether a file begins like the msgpack of a dictionary with text keys."""
    start = head(file, 6)
    if not start or not (0x80 < start[0] < 0x90 or start[0] in _KEY_AT):
        return False
    key = start[_KEY_AT.get(start[0], 1) :]
    return bool(key) and (0xA0 <= key[0] < 0xC0 or key[0] in _TEXTS)


def read_tree(path: Directory) -> Any:
    """Return the tree in a file: dictionaries, lists, numbers, texts, None, and `LazyArray`s.

    Only the bytes between the arrays are read.
    """
    file = File(path)
    try:
        return _Reader(file).whole()
    except (ValueError, TypeError, OverflowError, RecursionError, struct.error) as error:
        raise file.damaged(f"it is not msgpack as Flax writes it: {error}") from None


class _Reader:
    """Parses the values of a file, one after the other."""

    def __init__(self, file: File):
        self._file, self._position = file, 0

    def whole(self) -> Any:
        value = self._value()
        if self._position != self._file.nbytes:
            raise ValueError(f"{self._file.nbytes - self._position} bytes follow its end")
        return value

    def _value(self) -> Any:
        kind = self._take(1)[0]
        if kind < 0x80:
            return kind
        if kind < 0x90:
            return self._map(kind & 0x0F)
        if kind < 0xA0:
            return self._list(kind & 0x0F)
        if kind < 0xC0:
            return self._take(kind & 0x1F).decode()
        return kind - 0x100 if kind >= 0xE0 else self._long(kind)

    def _long(self, kind: int) -> Any:
        """Return a value whose kind needs more than the first byte."""
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind in _BYTES:
            return self._take(self._length(_BYTES[kind]))
        if kind in _TEXTS:
            return self._take(self._length(_TEXTS[kind])).decode()
        if kind in _LISTS:
            return self._list(self._length(_LISTS[kind]))
        if kind in _MAPS:
            return self._map(self._length(_MAPS[kind]))
        if kind in _EXTS or kind in _FIXED_EXTS:
            return self._ext(_FIXED_EXTS.get(kind) or self._length(_EXTS[kind]))
        raise ValueError(f"byte {self._position - 1} is {kind:#x}, which does not begin a value")

    def _map(self, length: int) -> Any:
        # Entry by entry, because a damaged length may be larger than memory.
        entries: dict[str, Any] = {}
        for _ in range(length):
            key = self._key()
            if key in entries:
                raise ValueError(f"a dictionary has the key {key!r} twice")
            entries[key] = self._value()
        return _joined(entries) if entries.get(_CHUNKED) is True else entries

    def _key(self) -> str:
        key = self._value()
        if not isinstance(key, str):
            raise ValueError(f"{key!r} is a key, but not a text")
        return key

    def _list(self, length: int) -> list[Any]:
        return [self._value() for _ in range(length)]

    def _ext(self, length: int) -> Any:
        code = self._take(1)[0]
        if code in (_ARRAY, _SCALAR):
            end = self._position + length
            array = self._array()
            if self._position != end:
                raise ValueError(f"an array's data ends at byte {self._position}, not {end}")
            return array
        if code == _COMPLEX:
            real, imaginary = self._value()
            return complex(real, imaginary)
        raise ValueError(f"extension {code} is not one of Flax's")

    def _array(self) -> LazyArray:
        length = self._take(1)[0]
        if length != 0x93:  # a list of three
            raise ValueError("an array is not a list of shape, dtype and bytes")
        shape, dtype = _shape(self._value()), np.dtype(str(self._value()))
        if (kind := self._take(1)[0]) not in _BYTES:
            raise ValueError("an array's values are not bytes")
        nbytes = self._length(_BYTES[kind])
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != nbytes:
            raise ValueError(f"an array of {dtype}{list(shape)} has {nbytes} bytes")
        return raw_array(self._file, self._skip(nbytes), shape, dtype)

    def _length(self, nbytes: int) -> int:
        return self._number(_LENGTHS[nbytes])

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, nbytes: int) -> bytes:
        start = self._skip(nbytes)
        return self._file[start : start + nbytes].tobytes()

    def _skip(self, nbytes: int) -> int:
        """Skip so many bytes, and return the offset of the first."""
        start, self._position = self._position, self._position + nbytes
        if self._position > self._file.nbytes:
            raise ValueError(f"it ends at byte {self._file.nbytes}, but should have {self._position} bytes")
        return start


def _joined(parts: Mapping[str, Any]) -> LazyArray:
    """Return a large array that was split into one-dimensional arrays."""
    shape, stretches = _shape(_in_order(parts, "shape")), _in_order(parts, "chunks")
    if not all(isinstance(stretch, LazyArray) and stretch.ndim == 1 for stretch in stretches):
        raise ValueError(f"the chunks of an array of shape {list(shape)} are not one-dimensional arrays")
    return concatenate(stretches).reshape(*shape)


def _in_order(parts: Mapping[str, Any], name: str) -> list[Any]:
    try:
        return [parts[name][str(number)] for number in range(len(parts[name]))]
    except KeyError as error:
        raise ValueError(f"an array that is split into chunks lacks {name}, or its entry {error}") from None


def _shape(sizes: Iterable[Any]) -> tuple[int, ...]:
    shape = tuple(map(operator.index, sizes))
    if min(shape, default=0) < 0:
        raise ValueError(f"an array has the shape {list(shape)}")
    return shape
