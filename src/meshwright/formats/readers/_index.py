"""Reads Hugging Face's index of a checkpoint in several files.

{"metadata": {"total_size": 128}, "weight_map": {"layer.w": "model-00001-of-00002.safetensors", …}}
"""

from typing import Any

from meshwright.errors import CheckpointError, DamagedError
from meshwright.formats.readers._file import read_document
from meshwright.storage import Directory


def read_index(index: Directory) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the file name of each array, and the metadata.

    Raises:
      DamagedError: The file is not such an index.
      CheckpointError: It names a file in another directory.
    """
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
