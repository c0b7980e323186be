"""The zarr v3 hierarchy inside a data file: which entries there are and what their metadata says.

    zarr.json                    the root group
    params/zarr.json             a group
    params/w/zarr.json           an array
    params/w/c/0/0               its chunks, raw little-endian bytes in row-major order

Source: the Zarr core specification 3.1. The data types that ml_dtypes adds to NumPy (bfloat16, the
8-bit floats and the narrow integers, one byte per element) are github.com/zarr-developers/zarr-extensions.
"""

import json
import re
from collections.abc import Iterable

import numpy as np

DTYPES = frozenset(
    {"bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32"}
    | {"uint64", "float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float4_e2m1fn"}
    | {"float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"}
    | {"float8_e5m2fnuz", "float8_e8m0fnu"}
)
"""The names of the data types that can be saved: zarr's, and also NumPy's."""

METADATA = "zarr.json"
_GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def node_path(name: str) -> str:
    """Return where the array called `name` stands in the hierarchy.

    Mostly under its own name. What zarr forbids or ZIP cannot hold is written with `%`, which in
    a name only ever begins `%25` or `%2F` and so stays unambiguous: no segment may be empty (`%`),
    consist of periods (`%2E`), begin with `__` (`%5F_`) or be `zarr.json`.
    """
    return "/".join(map(_node, name.split("/")))


def chunk_path(node: str, position: Iterable[int]) -> str:
    """Return the path of the chunk at `position` in the chunk grid of the array at `node`."""
    return "/".join([node, "c", *map(str, position)])


def groups_above(nodes: Iterable[str]) -> list[str]:
    """Return the metadata paths of all groups above the arrays at `nodes`, the root first."""
    above = {node[: cut.start()] for node in nodes for cut in re.finditer("/", node)}
    return [METADATA, *(f"{group}/{METADATA}" for group in sorted(above))]


def group_metadata() -> bytes:
    """Return the `zarr.json` of a group."""
    return json.dumps(_GROUP).encode()


def array_metadata(shape: tuple[int, ...], dtype: np.dtype, chunk_shape: tuple[int, ...]) -> bytes:
    """Return the `zarr.json` of an array."""
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _fill_value(dtype),
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    }
    return json.dumps(metadata).encode()


def _node(segment: str) -> str:
    segment = segment.replace("\0", "%00").replace("\\", "%5C")
    if not segment.strip("."):
        return segment.replace(".", "%2E") or "%"
    if segment.startswith("__"):
        return "%5F" + segment[1:]
    return "zarr%2Ejson" if segment == METADATA else segment


def _fill_value(dtype: np.dtype) -> bool | int | float | list[float]:
    """Return what zero bytes mean. Zarr wants a fill value; here no chunk is ever left out."""
    zero = np.frombuffer(bytes(dtype.itemsize), dtype)[0]
    if dtype.kind == "c":
        return [0.0, 0.0]
    if dtype.kind == "b":
        return False
    return int(zero) if "int" in dtype.name else float(zero)
