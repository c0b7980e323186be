"""The native format: what a step directory holds, how it is written and read.

    step_00000800/
      manifest.json                    the commit record: _manifest.py
      data-00000-of-00002.zarr.zip     process 0's shards, in a ZIP file that holds
      data-00001-of-00002.zarr.zip     a zarr v3 hierarchy: _container.py

A save goes through `_layout.py` (who writes what), `_snapshot.py` (shards on the host), `_write.py` (each
process's data file) and `_commit.py` (process 0 makes it a checkpoint); a restore through `_read.py`, which
reads chunks by `_blocks.py`. `_verify.py` compares every byte.
"""

from meshwright.checkpoint._format._commit import commit
from meshwright.checkpoint._format._layout import ArrayLayout, layouts
from meshwright.checkpoint._format._manifest import MANIFEST, Manifest, read_manifest
from meshwright.checkpoint._format._read import NativeSource
from meshwright.checkpoint._format._snapshot import HOST_NBYTES, Snapshot
from meshwright.checkpoint._format._verify import Damage, Report, incomplete, native_report
from meshwright.checkpoint._format._write import write_part, write_streamed

__all__ = [
    "HOST_NBYTES",
    "MANIFEST",
    "ArrayLayout",
    "Damage",
    "Manifest",
    "NativeSource",
    "Report",
    "Snapshot",
    "commit",
    "incomplete",
    "layouts",
    "native_report",
    "read_manifest",
    "write_part",
    "write_streamed",
]
