"""The native format: what a step directory holds, how it is written and read.

    step_00000800/
      manifest.json                    the commit record                        _manifest.py
      data-00000-of-00002.zarr.zip     process 0's shards: a ZIP file           _zip.py
      data-00001-of-00002.zarr.zip     that holds a zarr v3 hierarchy           _zarr.py

A save goes through `_layout.py` (who writes what), `_part.py` (each process writes) and
`_commit.py` (process 0 makes it a checkpoint); a restore through `_read.py`. `_pieces.py` says what
every byte must be, and `_stream.py` writes what is in no memory.
"""

from meshwright.checkpoint._format._commit import commit
from meshwright.checkpoint._format._layout import ArrayLayout, Index, layouts
from meshwright.checkpoint._format._manifest import MANIFEST, Manifest, read_manifest
from meshwright.checkpoint._format._part import HostChunk, data_file_name, part_file_name, to_host, write_part
from meshwright.checkpoint._format._pieces import Piece, layouts_of, pieces
from meshwright.checkpoint._format._read import NativeSource
from meshwright.checkpoint._format._slabs import slabs
from meshwright.checkpoint._format._stream import write_streamed

__all__ = [
    "MANIFEST",
    "ArrayLayout",
    "HostChunk",
    "Index",
    "Manifest",
    "NativeSource",
    "Piece",
    "commit",
    "data_file_name",
    "layouts",
    "layouts_of",
    "part_file_name",
    "pieces",
    "read_manifest",
    "slabs",
    "to_host",
    "write_part",
    "write_streamed",
]
