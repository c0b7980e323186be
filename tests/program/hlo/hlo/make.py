"""Makes the texts beside it: steps of a small decoder, compiled for hardware that need not be there.

    JAX_PLATFORMS=cpu python make.py cuda                             with jax's plugin for CUDA
    JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 python make.py tpu         with libtpu
    the same                             python make.py slices          of TPUs

Cut are tables of source locations, and `backend_config`, but for the trip counts in it.
"""

import lzma
import re
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

import meshwright as mw
from meshwright.lm._models import decoder

SIZES = decoder.Config(vocabulary=512, model=256, heads=4, feed_forward=512, layers=6)
MESHES = {
    "cuda": ("data=8", "fsdp=8", "data=2,fsdp=2,tensor=2"),
    "tpu": ("data=8", "fsdp=8", "data=2,fsdp=2,tensor=2"),
    "slices": ("fsdp=2,data=4",),
}
BATCH, LENGTH = 32, 128

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84978434048
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
TOPOLOGIES = {
    "cuda": {"topology_name": "", "topology": "1x2x4", "target_config": H100},
    "tpu": {"topology_name": "v5e:2x4"},
    "slices": {"topology_name": "v5e:2x2", "num_slices": 2},
}


def mesh_of(shape, platform):
    devices = topologies.get_topology_desc(
        platform="cuda" if platform == "cuda" else "tpu", **TOPOLOGIES[platform]
    ).devices
    sizes = mw.parallel._internal.mesh_sizes(shape, len(devices))
    return Mesh(
        np.array(devices).reshape(*sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


def compiled(shape, platform):
    layout = mw.Layout(mesh_of(shape, platform), decoder.RULES)

    def loss(params, batch, key):
        scores_BTV = decoder.logits(SIZES, params, batch["tokens"], remat="nothing")
        return optax.softmax_cross_entropy_with_integer_labels(scores_BTV, batch["targets"]).mean()

    tx = optax.adam(1e-3)
    state = mw.training.abstract_state(partial(decoder.init, SIZES), tx, layout)
    batch = {name: jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32) for name in ("tokens", "targets")}
    return mw.make_step(loss, tx, layout, compute_dtype="bfloat16").compile(state, batch).as_text()


def trimmed(text):
    heading, _, program = text.partition("\nFileNames\n")
    program = program[re.search(r"^(?=%)", program, re.MULTILINE).start() :]
    program = re.sub(r", backend_config=.*", _trip_count, program)
    return heading + "\n" + re.sub(r" (?:stack_frame_id=\d+|scheduling_name=\"[^\"]*\")", "", program)


def _trip_count(config):
    known = re.search(r'"known_trip_count":\{[^}]*\}', config[0])
    return f", backend_config={{{known[0]}}}" if known else ""


def main(platform):
    for shape in MESHES[platform]:
        name = re.sub(r"\W", "_", shape)
        file = Path(__file__).with_name(f"{platform}_{name}.hlo.txt.xz")
        file.write_bytes(lzma.compress(trimmed(compiled(shape, platform)).encode(), preset=9))
        print(file.name, file.stat().st_size)


if __name__ == "__main__":
    main(*sys.argv[1:])
