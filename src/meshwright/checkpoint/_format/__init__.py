"""The native format: what a step directory holds, how it is written and read.

    step_00000800/
      manifest.json                    the commit record                        _manifest.py
      data-00000-of-00002.zarr.zip     process 0's shards: a ZIP file           _zip.py
      data-00001-of-00002.zarr.zip     that holds a zarr v3 hierarchy           _zarr.py

A save goes through `_layout.py` (who writes what), `_snapshot.py` (shards on the host), `_part.py`
(each process writes `_data_file.py` as `_plan.py` has it) and `_commit.py` (process 0 makes it a
checkpoint); a restore through `_read.py`. `_upload.py` writes to object stores, past all disks.
`_pieces.py` says what every byte must be.
"""

from meshwright.arrays import Bounds, Index, bounds_of, overlapping, slabs
from meshwright.checkpoint._format._commit import commit
from meshwright.checkpoint._format._layout import ArrayLayout, layouts
from meshwright.checkpoint._format._manifest import MANIFEST, Manifest, read_manifest
from meshwright.checkpoint._format._part import data_file_name, part_file_name, write_part, write_streamed
from meshwright.checkpoint._format._pieces import Piece, layouts_of, pieces
from meshwright.checkpoint._format._read import NativeSource
from meshwright.checkpoint._format._snapshot import HOST_NBYTES, Snapshot
from meshwright.checkpoint._format._upload import upload_part
from meshwright.crc32 import crc32
from meshwright.durable import fsync_directory

__all__ = [
    "HOST_NBYTES",
    "MANIFEST",
    "ArrayLayout",
    "Bounds",
    "Index",
    "Manifest",
    "NativeSource",
    "Piece",
    "Snapshot",
    "bounds_of",
    "commit",
    "crc32",
    "data_file_name",
    "fsync_directory",
    "layouts",
    "layouts_of",
    "overlapping",
    "part_file_name",
    "pieces",
    "read_manifest",
    "slabs",
    "upload_part",
    "write_part",
    "write_streamed",
]
