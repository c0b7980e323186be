"""Writes safetensors files.

    │ N, the length of the header: 8 bytes, little-endian                              │
    │ header: JSON, padded with blanks to a multiple of 8                              │  N bytes
    │   {"__metadata__": {"format": "pt"},                                             │
    │    "params.w": {"dtype": "BF16", "shape": [64, 128], "data_offsets": [0, 16384]}}│
    │ the arrays' raw little-endian bytes, row-major, one after the other              │

Offsets count from the end of the header. Arrays with the widest dtypes come first, so that each array begins
at a multiple of its item size, as readers that memory-map the file need it.

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
"""The header's entry for text by name; all others are arrays."""
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
"""The format's names for dtypes of NumPy and ml_dtypes. The `safetensors` package only maps NumPy's."""

Structs = Mapping[str, jax.ShapeDtypeStruct]


def nbytes(array: jax.ShapeDtypeStruct) -> int:
    """Return the size of an array in the file, in bytes."""
    return math.prod(array.shape) * array.dtype.itemsize


def write_file(
    path: Path,
    arrays: Structs,
    read: Callable[[str], Iterable[np.ndarray]],
    metadata: Mapping[str, str],
) -> None:
    """Write one file and flush it to disk; `read` yields the parts of an array in row-major order."""
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
    with path.open("wb") as file:
        file.write(_header(ordered, metadata))
        for name in ordered:
            for part in read(name):
                # Viewed as uint8, because NumPy has no buffers for the dtypes of ml_dtypes.
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
