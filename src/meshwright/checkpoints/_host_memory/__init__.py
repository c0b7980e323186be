"""Checkpoints in the memory of the hosts, beside those on a disk or in a store.

    /dev/shm/meshwright-1000-5e0c1a97b2d4f608/      of one run, on one host
      .run                           says which: the place of its checkpoints, and a number drawn for this run
      .lock, .lock.holder            locked by the first process of this host
      step_00000810/                 in the format of all checkpoints: the shards of this host's processes
      step_00000820.tmp-91d2b7f0/    is being written, or was left by a killed run

Each host has a directory of its own, which only its processes see. Nothing is exchanged to write: a
checkpoint is complete when each host has its part, and a run that starts again asks for this by a roll call.
`_host_directory` finds the directory, the processes that share it and the complete steps, `_budget` has the
settings and keeps within the budget, and `_checkpoints` saves.
"""
