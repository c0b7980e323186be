"""What options of the compiler change, seen in programs for hardware that is not there.

    python benchmarks/compiler_options.py [h100:8 a100:8 …]

Compiles a step of a decoder of 7 billion parameters, split by fsdp, with and without those that
`docs/how-to/speed.md` names for GPUs. "overlapped" are asynchronous collectives with a computation between
start and end, in the order of the schedule. The compilers must be installed: `meshwright[cuda13]`. No speed
is measured: nothing runs.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
import numpy as np

import decoder
import meshwright as mw
from meshwright.engine._experiment._parts import parts_of
from meshwright.plan._plan import site_of
from meshwright.plan._site import Site
from meshwright.plan._topology import described_devices, missing_compiler
from meshwright.program._hlo._collectives import collectives
from meshwright.program._hlo._program import Computation, collective_of, parse

ON = ("a100:8", "h100:8", "b200:8")
GPUS = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_enable_while_loop_double_buffering": True,
    "xla_gpu_all_gather_combine_threshold_bytes": 2**30,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 2**30,
    "xla_gpu_all_reduce_combine_threshold_bytes": 2**27,
}
COMPUTATIONS = ("fusion", "custom-call", "dot", "convolution", "while")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="*", default=ON, help="hardware, as for meshwright plan --on")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    size, rows, length = ("tiny", 8, 64) if options.tiny else ("7b", 64, 1024)
    for on in ("cpu:8", "a100:8") if options.tiny else options.places:
        experiment = decoder.experiment(size=size, batch_size=rows, length=length, mesh="fsdp=-1")
        site = site_of(experiment, on)
        if missing := missing_compiler(site.hardware):
            print(f"{on}: install {missing}")
            continue
        show(on, site)


def show(on: str, site: Site) -> None:
    mesh = site._mesh(described_devices(site.hardware))
    devices = list(mesh.devices.flat)
    print(f"{on}: {devices[0].device_kind}")
    for name, options in (("as it is", {}), ("with them", {} if on.startswith("cpu") else GPUS)):
        print(f"  {name:<12} {measured(site, mesh, options)}", flush=True)


def measured(site: Site, mesh: Any, options: Any) -> str:
    compile_settings = mw.Compile(options=options, cache=False)
    parts = parts_of(dataclasses.replace(site.experiment, compile=compile_settings), mesh, site.rows)
    started = time.perf_counter()
    compiled = parts.step.compile(parts.target, parts.batch)
    seconds = time.perf_counter() - started
    text = compiled.as_text() or ""
    runs: Counter[str] = Counter()
    for each in collectives(text, mesh):
        runs[each.kind] += each.times
    counted = np.array([overlaps(each) for each in parse(text).computations.values()])
    started_there, overlapped = counted.sum(axis=0)
    temporary = compiled.memory_analysis().temp_size_in_bytes / 2**30
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(runs.items()))
    return (
        f"{told} in a step; {overlapped} of {started_there} asynchronous ones in the program overlapped; "
        f"temporary {temporary:.2f} GiB; compiled in {seconds:.1f} s"
    )


def overlaps(computation: Computation) -> tuple[int, int]:
    """Return how many asynchronous collectives a computation starts, and how many overlap."""
    under_way: dict[str, bool] = {}
    ended = []
    for op in computation.values():
        kind = op.attribute("calls") or op.name if op.opcode == "async-start" else op.opcode
        if op.opcode.endswith("-start") and collective_of(kind):
            under_way[op.name] = False
        elif op.opcode.endswith("-done") and op.operands and op.operands[0] in under_way:
            ended.append(under_way.pop(op.operands[0]))
        elif op.opcode in COMPUTATIONS:
            under_way = dict.fromkeys(under_way, True)
    return len(ended), sum(ended)


if __name__ == "__main__":
    main()
