"""Exports to NumPy's npz: a ZIP file with a `.npy` file for each array, as `numpy.load` reads it.

Source: numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from meshwright.base._internal import fsync_directory, tree
from meshwright.checkpoints._arrays._chunks import slabs
from meshwright.checkpoints._arrays._source import Source
from meshwright.checkpoints._exports import (
    Chosen,
    Names,
    TreeSource,
    chosen,
    local,
    readable,
    refuse_dtypes,
    staged,
)
from meshwright.errors import UsageError
from meshwright.processes._internal import on_lead

_LARGE = 1 << 30  # bytes, from which on ZIP64 is used for a member; it is required from twice as many


def export_npz(tree_or_source: tree.PyTree | Source, file: str | Path, *, names: Names | None = None) -> Path:
    """Write arrays into one `.npz` file, and return its path.

    Collective: process 0 reads and writes, 16 MiB at a time, and all processes return when it is done. The
    file appears when it is complete.

    Args:
      tree_or_source: A tree whose arrays this process holds whole, or an opened checkpoint.
      file: The path of the file; `.npz` is added if it is missing.
      names: Returns the name in the file for an array's Meshwright name, or None, which leaves the array out.
        By default the names stay the same.

    Raises:
      UsageError: The file exists, no array is left, two arrays would get the same name, NumPy lacks the dtype
        of one, or an array lies on other processes too.
      DamagedError: A part of the checkpoint is damaged.

    Example:
      >>> path = mw.checkpoints.export_npz({"layer": {"w": jnp.ones(3)}}, "weights")
      >>> path.name, np.load(path).files
      ('weights.npz', ['layer/w'])
    """
    path = local(file)
    path = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
    source = readable(tree_or_source)
    arrays = chosen(source.arrays(), names or str)
    refuse_dtypes("npz", arrays)
    return Path(on_lead(lambda: _write(source, path, arrays)))


def _write(source: Source | TreeSource, path: Path, arrays: Mapping[str, Chosen]) -> str:
    with staged(path) as staging:
        if path.exists():
            raise UsageError(f"{path} exists already; give another name, or move it away.")
        with (staging / path.name).open("wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for name, choice in arrays.items():
                    _write_array(archive, name, source, choice)
            file.flush()
            os.fsync(file.fileno())
        (staging / path.name).rename(path)
        fsync_directory(path.parent)
    return str(path)


def _write_array(archive: zipfile.ZipFile, name: str, source: Source | TreeSource, choice: Chosen) -> None:
    shape, dtype = choice.array.shape, choice.array.dtype
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    is_large = math.prod(shape) * dtype.itemsize >= _LARGE
    with archive.open(f"{name}.npy", "w", force_zip64=is_large) as npy:
        np.lib.format.write_array_header_1_0(npy, header)
        for slab in slabs(shape, dtype.itemsize):
            npy.write(np.ascontiguousarray(source.read(choice.name, slab)).reshape(-1).view(np.uint8).data)
