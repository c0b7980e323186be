"""Meshwright's checkpoint format: the files of a step directory, written, read and verified.

    step_00000800/
      manifest.json                    the commit record: _manifest.py
      data-00000-of-00002.zarr.zip     process 0's shards, in a ZIP file that holds
      data-00001-of-00002.zarr.zip     a zarr v3 hierarchy: _container.py

A save uses `_layout.py` (which process writes which chunk), `_snapshot.py` (shards in host memory),
`_write.py` (the data file of each process) and `_commit.py` (process 0 makes it a checkpoint). A restore uses
`_read.py`. `_verify.py` compares every byte.
"""
