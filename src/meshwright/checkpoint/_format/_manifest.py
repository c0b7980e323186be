"""`manifest.json`: the record that makes a directory of data files a checkpoint.

It is written last, so what it names is complete. It is JSON in UTF-8, one array to a line:

    {
    "format": "meshwright.checkpoint",
    "version": 1,
    "step": 800,
    "writer": {"meshwright": "0.1.0", "jax": "0.10.2", "processes": 2, "mesh": {"data": 2, "fsdp": 4}},
    "extra": {"data": {"position": 51200}, "scores": {"eval/loss": 0.31}},
    "prng_keys": {"rng": "threefry2x32"},
    "files": [{"name": "data-00000-of-00002.zarr.zip", "bytes": 33820}, ...],
    "arrays": {
    "params/w": {"shape": [64, 128], "dtype": "bfloat16", "chunk_shape": [32, 128],
                 "chunks": [[0, 512, 8192, 4062340125], [1, 512, 8192, 2094610987]]}
    },
    "crc32": 3140292718}

`chunks` has one entry for each chunk, in row-major order of the chunk grid: the number of the file,
offset and size in bytes of the chunk's raw data there, and the CRC-32 of that data. `mesh` is null
where the state was not sharded over one. `prng_keys` names the arrays that are the data of typed
PRNG keys, with the keys' implementation; where there are none it may be left out. The last line
holds the CRC-32 of all bytes before it.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshwright.checkpoint._format._claims import wrong_claim
from meshwright.collector import collector_paused
from meshwright.documents import parse_json
from meshwright.errors import CheckpointError, DamagedError
from meshwright.storage import Directory

MANIFEST = "manifest.json"
_FORMAT = "meshwright.checkpoint"
_VERSION = 1


class Place(NamedTuple):
    """Where the bytes of one chunk lie; the fields are in the order of the format."""

    file: int
    offset: int
    size: int
    crc32: int


class DataFile(NamedTuple):
    """One process's data file."""

    name: str
    nbytes: int


class SavedArray(NamedTuple):
    """One array; the fields are named as in the format."""

    shape: tuple[int, ...]
    dtype: str
    chunk_shape: tuple[int, ...]
    chunks: tuple[Place, ...]


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says."""

    step: int
    writer: Mapping[str, Any]
    extra: Any
    files: tuple[DataFile, ...] = ()
    arrays: Mapping[str, SavedArray] = field(default_factory=dict)
    prng_keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, float]:
        """Return the scores that were saved beside the arrays; what is none is left out."""
        saved = self.extra.get("scores")
        found = saved.items() if isinstance(saved, Mapping) else ()
        return {name: value for name, value in found if type(value) in (int, float)}


@collector_paused()
def manifest_text(manifest: Manifest) -> bytes:
    """Return the content of `manifest.json`."""
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "step": manifest.step,
        "writer": manifest.writer,
        "extra": manifest.extra,
        "prng_keys": manifest.prng_keys,
        "files": [{"name": file.name, "bytes": file.nbytes} for file in manifest.files],
    }
    arrays = {name: array._asdict() for name, array in manifest.arrays.items()}
    return _sealed(f'{{\n{_lines(head)},\n"arrays": {{\n{_lines(arrays)}\n}},\n'.encode())


def read_manifest(directory: Directory) -> Manifest:
    """Read the manifest of the checkpoint in `directory`.

    Raises:
      CheckpointError: It is not there, or of a newer format than this one.
      DamagedError: It is not what was written.
    """
    path = directory / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{directory} is no checkpoint: it has no {MANIFEST}.") from None
    fields = _checked(content, path)
    return Manifest(
        step=fields["step"],
        writer=fields["writer"],
        extra=fields["extra"],
        prng_keys=fields.get("prng_keys", {}),
        files=tuple(DataFile(file["name"], file["bytes"]) for file in fields["files"]),
        arrays={name: _saved_array(array) for name, array in fields["arrays"].items()},
    )


def _lines(fields: Mapping[str, Any]) -> str:
    return ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())


def _checked(content: bytes, path: Directory) -> dict[str, Any]:
    """Return the fields of a manifest, once checksum, format, version and what it says are known to be right.

    The checksum comes first, as a flipped bit can make another version, and is the same in all.
    """
    try:
        fields = parse_json(content)
    except ValueError as error:
        raise _damaged(path, f"it is not JSON ({error})") from None
    if not isinstance(fields, dict) or "crc32" not in fields:
        raise _damaged(path, "it is not the manifest of a Meshwright checkpoint")
    if content != _sealed(content[: content.rfind(b"\n", 0, -1) + 1]):
        raise _damaged(path, "its checksum is not that of its content")
    if fields.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is not the manifest of a Meshwright checkpoint.")
    version, writer = fields.get("version"), fields.get("writer")
    if type(version) is not int or version < 1:
        raise _damaged(path, f"it says that it is of format version {version!r:.40}")
    if version > _VERSION:
        wrote = writer.get("meshwright") if isinstance(writer, dict) else None
        raise CheckpointError(
            f"{path} is of format version {version}, and this Meshwright reads up to {_VERSION}. "
            f"It was written by Meshwright {wrote!s:.40}: install that or a later one."
        )
    if wrong := wrong_claim(fields):
        raise _damaged(path, wrong)
    return fields


def _sealed(body: bytes) -> bytes:
    """Return all but the last line of a manifest with the last, which is its checksum."""
    return body + f'"crc32": {zlib.crc32(body)}}}\n'.encode()


def _saved_array(fields: Mapping[str, Any]) -> SavedArray:
    return SavedArray(
        shape=tuple(fields["shape"]),
        dtype=fields["dtype"],
        chunk_shape=tuple(fields["chunk_shape"]),
        chunks=tuple(Place(*place) for place in fields["chunks"]),
    )


def _damaged(path: Directory, how: str) -> DamagedError:
    return DamagedError(f"{path} is damaged: {how}. Copy it again, or use another checkpoint.")
