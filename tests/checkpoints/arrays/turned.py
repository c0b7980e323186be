"""A process of several that restore an array turned: split along its columns, saved in chunks of rows.

turned.py DIRECTORY PROCESSES: restores what is in DIRECTORY, and writes down what it read and heard.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={8 // int(sys.argv[2])}"
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import numpy as np

import meshwright as mw
from checkpoints.arrays.test_turned import SHAPE
from checkpoints.formats.readers.real import bytes_read
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import DamagedError
from meshwright.processes import _internal as processes


def restored_of(path, target):
    return restore(open_source(path), target, ignore=".*")


def main(directory):
    me = processes.start_processes(timeout_seconds=400).process_id
    mesh = mw.make_mesh("data=-1")
    target = {
        name: jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=jax.NamedSharding(mesh, spec))
        for name, spec in {"turned": jax.P(None, "data"), "same": jax.P("data"), "whole": jax.P()}.items()
    }
    said = {}
    whole = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    for name, struct in target.items():
        again = partial(restored_of, directory / "whole", {name: struct})
        restored = again()[name]  # for the first time, JAX reads files of its own
        said[name] = bytes_read(again)
        right = all(np.array_equal(shard.data, whole[shard.index]) for shard in restored.addressable_shards)
        said[f"{name} is right"] = right and restored.sharding == struct.sharding
    try:
        restore(open_source(directory / "damaged"), target)
    except DamagedError as error:
        said["heard"] = str(error)
    with Checkpoints(directory / "two") as checkpoints:
        resumed = checkpoints.resume(target, None, otherwise=dict)
    said["resumed"] = checkpoints.resumed
    said["resumed is right"] = bool((jax.jit(lambda x: x == whole)(resumed["turned"])).all())
    (directory / f"{me}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
