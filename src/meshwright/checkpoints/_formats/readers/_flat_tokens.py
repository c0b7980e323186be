"""Recognises seqax's training data, and opens its tokens."""

import numpy as np

from meshwright.base._internal import Directory
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._formats.readers._tensorstore import store_of
from meshwright.checkpoints._formats.readers._zarr import open_arrays
from meshwright.errors import DamagedError

_TOKENS, _STARTS, _ARRAY = "encoded_tokens", "seq_starts", ".zarray"


def is_flat_tokens(place: Directory) -> bool:
    """Return whether a directory is a group of flat tokens, one split of a data set."""
    return all((place / name / _ARRAY).is_file() for name in (_TOKENS, _STARTS))


def splits_of(place: Directory) -> list[str]:
    """Return the names of the splits of a data set of flat tokens; none if it is something else."""
    return [name for name in ("train", "validation") if is_flat_tokens(place / name)]


def open_flat_tokens(place: Directory) -> LazyArray | None:
    """Return the tokens of a split, uint32[tokens]; None if there are none."""
    if not is_flat_tokens(place):
        return None
    spec = {"driver": "zarr", "path": _TOKENS, "fill_missing_data_reads": False}
    tokens = open_arrays(place, store_of(place), {_TOKENS: spec})[_TOKENS]
    if tokens.ndim != 1 or tokens.dtype != np.uint32:
        raise DamagedError(f"{place}/{_TOKENS} is {tokens.dtype}{list(tokens.shape)}, not uint32[tokens].")
    return tokens
