"""Hugging Face's index of a checkpoint in several files.

{"metadata": {"total_size": 128}, "weight_map": {"layer.w": "model-00001-of-00002.safetensors", …}}
"""

from typing import Any

from meshwright.errors import CheckpointError, DamagedError
from meshwright.formats.readers._file import read_document
from meshwright.storage import Directory


def read_index(index: Directory) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the name of the file that holds each array, and what is said beside that.

    Raises:
      DamagedError: It is no such index.
      CheckpointError: It names a file elsewhere.
    """
    try:
        document = read_document(index)
        files = {name: str(file) for name, file in document["weight_map"].items()}
        metadata = dict(document.get("metadata") or {})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"{index} does not say which file holds what: {error!r}. Copy it again.") from None
    if outside := [file for file in files.values() if "/" in file]:
        raise CheckpointError(f"{index} names a file elsewhere, {outside[0]}, which is not opened.")
    return files, metadata
