"""A program of two processes of two devices each: it restores checkpoints and says what each has of them."""

import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np

import meshwright as mw
from meshwright import process

process.start()
where, me = Path(sys.argv[1]), jax.process_index()
sharding = jax.NamedSharding(mw.make_mesh("data=4"), jax.P("data"))
said = {}
for path, name in json.loads((where / "asked.json").read_text()):
    source = mw.open_source(where / path)
    struct = jax.ShapeDtypeStruct(source.arrays()[name].shape, np.float32, sharding=sharding)
    array = mw.restore(source, {"x": struct}, assign=[("x", name)], ignore=".*")["x"]
    said[path] = np.concatenate([shard.data for shard in array.addressable_shards]).tolist()
(where / f"{me}.json").write_text(json.dumps(said))
