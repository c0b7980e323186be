"""The native format: what a step directory holds, how it is written and read.

    step_00000800/
      manifest.json                    the commit record                        _manifest.py
      data-00000-of-00002.zarr.zip     process 0's shards: a ZIP file           _zip.py
      data-00001-of-00002.zarr.zip     that holds a zarr v3 hierarchy           _zarr.py

A save goes through `_layout.py` (who writes what), `_snapshot.py` (shards on the host), `_part.py`
(each process writes `_data_file.py` as `_plan.py` has it) and `_commit.py` (process 0 makes it a
checkpoint); a restore through `_read.py`.
"""

from meshwright.checkpoint._format._commit import commit
from meshwright.checkpoint._format._layout import ArrayLayout, layouts
from meshwright.checkpoint._format._manifest import MANIFEST, Manifest, read_manifest
from meshwright.checkpoint._format._part import write_part
from meshwright.checkpoint._format._read import NativeSource
from meshwright.checkpoint._format._snapshot import HOST_NBYTES, Snapshot

__all__ = [
    "HOST_NBYTES",
    "MANIFEST",
    "ArrayLayout",
    "Manifest",
    "NativeSource",
    "Snapshot",
    "commit",
    "layouts",
    "read_manifest",
    "write_part",
]
