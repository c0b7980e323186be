"""The safetensors file: how one is laid out and written.

    │ N, the length of the header: 8 bytes, little-endian                              │
    │ header: JSON, blanks behind it up to a multiple of 8                             │  N bytes
    │   {"__metadata__": {"format": "pt"},                                             │
    │    "params.w": {"dtype": "BF16", "shape": [64, 128], "data_offsets": [0, 16384]}}│
    │ the arrays' raw little-endian bytes, row-major, one after the other              │

Offsets count from the end of the header. The widest types stand first, so that every array begins on
a multiple of its item's size, as readers that map the file want it.

Source: github.com/huggingface/safetensors, README ("Format") and `Dtype` in safetensors/src/tensor.rs.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax
import numpy as np

LENGTH = struct.Struct("<Q")
METADATA = "__metadata__"
"""The entry of the header that is no array: text by name."""
_ALIGNMENT = 8

DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
"""What the format calls NumPy's and ml_dtypes's types. The `safetensors` package maps NumPy's alone."""

Structs = Mapping[str, jax.ShapeDtypeStruct]


def nbytes(array: jax.ShapeDtypeStruct) -> int:
    """Return the bytes that an array takes in the file."""
    return math.prod(array.shape) * array.dtype.itemsize


def write_file(
    path: Path,
    arrays: Structs,
    read: Callable[[str], Iterable[np.ndarray]],
    metadata: Mapping[str, str],
) -> None:
    """Write one durable file; `read` yields the parts of an array, in row-major order."""
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
    with path.open("wb") as file:
        file.write(_header(ordered, metadata))
        for name in ordered:
            for part in read(name):
                # Through uint8, as NumPy gives no buffer of the dtypes of ml_dtypes.
                file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def _header(arrays: Structs, metadata: Mapping[str, str]) -> bytes:
    entries, start = {}, 0
    for name, array in arrays.items():
        end = start + nbytes(array)
        dtype = DTYPES[array.dtype.name]
        entries[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps({METADATA: dict(metadata), **entries}, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return LENGTH.pack(len(text)) + text
