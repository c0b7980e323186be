"""Meshwright's checkpoint format: the files of a step directory, written, read and verified.

    step_00000800/
      manifest.json                    the commit record: _manifest.py
      data-00000-of-00002.zarr.zip     process 0's shards, in a ZIP file that holds
      data-00001-of-00002.zarr.zip     a zarr v3 hierarchy: _container.py

A save uses `_layout.py` (which process writes which chunk), `_snapshot.py` (shards in host memory),
`_write.py` (the data file of each process) and `_commit.py` (process 0 makes it a checkpoint). A restore uses
`_read.py`, which reads chunks by `_blocks.py`. `_verify.py` compares every byte.
"""

from meshwright.checkpoint._format._commit import ON_OTHER_HOSTS, commit
from meshwright.checkpoint._format._container import plan_file
from meshwright.checkpoint._format._layout import ArrayLayout, layouts
from meshwright.checkpoint._format._manifest import MANIFEST, Manifest, manifest_text, read_manifest
from meshwright.checkpoint._format._read import NativeSource
from meshwright.checkpoint._format._snapshot import HOST_NBYTES, Snapshot
from meshwright.checkpoint._format._verify import Damage, Report, incomplete, native_report, other_arrays
from meshwright.checkpoint._format._write import write_part, write_streamed

__all__ = [
    "HOST_NBYTES",
    "MANIFEST",
    "ON_OTHER_HOSTS",
    "ArrayLayout",
    "Damage",
    "Manifest",
    "NativeSource",
    "Report",
    "Snapshot",
    "commit",
    "incomplete",
    "layouts",
    "manifest_text",
    "native_report",
    "other_arrays",
    "plan_file",
    "read_manifest",
    "write_part",
    "write_streamed",
]
