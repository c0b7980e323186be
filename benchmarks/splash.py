"""Splash attention, compiled for a TPU that is not there: what it takes beside the form by blocks.

    python benchmarks/splash.py [v5e:4x4 v6e:4x4 …]

Compiles the gradient of causal attention for one device of each, at several lengths, and prints the number of
kernels, the temporary memory and the seconds of compiling. Needs `meshwright[tpu]`; nothing runs. Where it is
missing, `--tiny` compiles the form by blocks for a CPU.
"""

import argparse
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshwright as mw
from meshwright.plan._hardware import hardware_named
from meshwright.plan._topology import described_devices, missing_compiler

CASES = ((2048, 64), (2048, 128), (8192, 128), (8192, 256))  # tokens, features of a head
TINY = ((256, 128),)
HEADS = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "places", nargs="*", default=["v5e:4x4"], help="the hardware, as for --on of meshwright plan"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    print(f"{'':<28}{'form':>10}{'kernels':>9}{'temporary MiB':>15}{'seconds':>9}")
    for on in options.places:
        hardware = hardware_named(on)
        if missing := missing_compiler(hardware):
            print(f"{on}: install {missing}")
            if not options.tiny:
                continue
            on = "cpu:1"
        mesh = Mesh(np.array(described_devices(hardware_named(on))[:1]), ("data",))
        for length, features in TINY if options.tiny else CASES:
            for form in ("blockwise",) if on == "cpu:1" else ("blockwise", "splash"):
                show(f"{on}, {length} × {features}", mesh, length, features, form)


def show(title: str, mesh: Mesh, length: int, features: int, form: str) -> None:
    here = NamedSharding(mesh, PartitionSpec())
    x = jax.ShapeDtypeStruct((1, length, HEADS, features), jnp.bfloat16, sharding=here)

    def loss(q, k, v):
        return mw.nn.attention(q, k, v, causal=True, form=form).astype(jnp.float32).sum()

    started = time.perf_counter()
    with mw.parallel._internal.in_mesh(mesh):
        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile()
    kernels = (compiled.as_text() or "").count('custom_call_target="tpu_custom_call"')
    temporary = compiled.memory_analysis().temp_size_in_bytes / 2**20
    print(
        f"{title:<28}{form:>10}{kernels:>9}{temporary:>15.1f}{time.perf_counter() - started:>9.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
