"""Reads Hugging Face's index of a checkpoint in several files.

{"metadata": {"total_size": 128}, "weight_map": {"layer.w": "model-00001-of-00002.safetensors", …}}
"""

from collections.abc import Collection, Mapping
from typing import Any

from meshwright.base._internal import Directory
from meshwright.checkpoints._formats.readers._file import read_document
from meshwright.errors import CheckpointError, DamagedError, listed


def only_index(place: Directory, pattern: str, single: str) -> Directory | None:
    """Return the index in a directory, by a pattern; `single` is the name of a checkpoint in one file."""
    indices = sorted(place.glob(pattern), key=str)
    if len(indices) > 1:
        names = ", ".join(index.name for index in indices)
        raise CheckpointError(f"{place} has several index files, {names}. Move all but one away.")
    if indices and (place / single).is_file() and single not in read_index(indices[0])[0].values():
        raise CheckpointError(
            f"{place} has {single} and {indices[0].name}, which does not list it: two checkpoints, of which "
            "loaders take one or the other. Move one away, with its files."
        )
    return indices[0] if indices else None


def check_listed(index: Directory, files: Mapping[str, str], arrays: Mapping[str, Collection[str]]) -> None:
    """Check that the arrays in the files of an index, by file, are those that it lists, with their files."""
    if missing := [name for name, file in files.items() if name not in arrays[file]]:
        file = index.parent / files[missing[0]]
        raise DamagedError(f"{file} lacks {missing[0]}, which {index.name} lists there.")
    if extra := [
        f"{name} of {file}" for file, names in arrays.items() for name in names if name not in files
    ]:
        raise CheckpointError(f"{index} does not list {listed(extra)}. Add them to it, or write them anew.")


def read_index(index: Directory) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the file name of each array, and the metadata."""
    try:
        document = read_document(index)
        files = {name: str(file) for name, file in document["weight_map"].items()}
        metadata = dict(document.get("metadata") or {})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"{index} has no valid map from arrays to files: {error!r}. Copy it again."
        ) from None
    if outside := [file for file in files.values() if "/" in file]:
        raise CheckpointError(
            f"{index} names {outside[0]}, a file in another directory, which is not opened."
        )
    return files, metadata
