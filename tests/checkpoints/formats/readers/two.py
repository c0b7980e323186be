"""A program of two processes of four devices each: it restores checkpoints.

It says how each came out, and of large ones how many bytes it read.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=4"
sys.path.insert(0, str(Path(__file__).parents[3]))

import jax

import meshwright as mw
from checkpoints.formats.readers.real import Expected, assert_restored, bytes_read
from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._formats._open import open_source
from meshwright.processes import _internal as processes

processes.start_processes()
where = Path(sys.argv[1])
mesh = mw.make_mesh("data=2,fsdp=2,tensor=2")
said = {}
for path, held in json.loads((where / "asked.json").read_text()).items():
    wanted = {name: Expected(tuple(shape), dtype, digest) for name, (shape, dtype, digest) in held.items()}
    try:
        assert_restored(where / path, wanted, mesh)
        said[path] = "as expected"
    except Exception as error:  # the others are to be tried too
        said[path] = repr(error)
over_all = jax.NamedSharding(mesh, jax.P(mesh.axis_names))
for path in sorted((where / "large").iterdir()):
    arrays = open_source(path).arrays()
    name = max(arrays, key=lambda name: arrays[name].nbytes)
    source = as_source({name: arrays[name]}, path.name)
    target = tree.nested({name: jax.ShapeDtypeStruct((1024, 1024), "float32", sharding=over_all)})
    said[path.name] = bytes_read(partial(restore, source, target))
(where / f"{jax.process_index()}.json").write_text(json.dumps(said))
