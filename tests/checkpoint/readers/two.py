"""A program of two processes of four devices each: it restores checkpoints, and says how each came out.

And how many bytes were read for what the devices here have.
"""

import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax

import meshwright as mw
from checkpoint.readers.real import Expected, assert_restored, bytes_read, opened, restored
from meshwright import process

process.start()
where = Path(sys.argv[1])
mesh = mw.make_mesh("data=2,fsdp=2,tensor=2")
said = {}
for path, held in json.loads((where / "asked.json").read_text()).items():
    wanted = {name: Expected(tuple(shape), dtype, digest) for name, (shape, dtype, digest) in held.items()}
    try:
        assert_restored(where / path, wanted, mesh)
        source = opened(where / path, wanted)
        said[path] = "as expected", bytes_read(lambda: restored(source, mesh, wanted))  # noqa: B023
    except Exception as error:  # the others are to be tried too
        said[path] = repr(error), 0
(where / f"{jax.process_index()}.json").write_text(json.dumps(said))
