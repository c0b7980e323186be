"""How fast checkpoints are written and read: ours, Orbax's, safetensors', T5X's, and what the disk allows.

Every case runs in a process of its own with eight virtual devices, in rounds in which all take turns,
so ratios within a round mean something on a shared machine. A bound is the same bytes moved by
plain system calls: written into a preallocated file by two threads, buffered or O_DIRECT, whichever is
faster, with fsync; and read by `pread` with two threads from the page cache. Bars are on ratios, bytes
and memory.
"""

import argparse
import importlib.util
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from peers.bounds import BLOCK, Peak, aligned, bounds, bytes_read, settle
from peers.checkpoint import PEERS, Peer

from meshwright.base import _tree as tree

Tree = Any
Seconds = dict[str, list[float]]
"""What was measured, by name: a number for each round."""

MODULES = {"orbax": "orbax", "safetensors": "safetensors"}
LAYOUTS = {
    "same mesh": (8, P("fsdp")),
    "8→4": (4, P("fsdp")),
    "8→1": (1, P("fsdp")),
    "other axis": (8, P(None, "fsdp")),
}


@dataclass(frozen=True)
class Case:
    """A state, and how far from the bound its save may be."""

    title: str
    shapes: list[tuple[int, ...]]
    max_save: float
    max_restore: float | None


def cases(scale: float) -> dict[str, Case]:
    """Return the cases with their leading dimensions multiplied by `scale`."""

    def rows(count: int) -> int:
        return max(8, int(count * scale) // 8 * 8)

    layer = [(rows(1344), 1344)] * 4 + [(rows(1344), 4 * 1344)] * 2 + [(1344,)] * 2
    return {
        "a": Case("2 GB in 147 arrays", (layer * 6 + [(rows(28672), 1344)]) * 3, 1.25, 1.5),
        "b": Case("0.2 GB in 5,000 arrays", [(320, 32)] * rows(5000), 2.5, None),
        "c": Case("1 GB in one array", [(rows(1 << 17), 2048)], 1.4, 1.5),
    }


def make_state(shapes: list[tuple[int, ...]]) -> Tree:
    random, sharding = np.random.default_rng(0), targets_sharding(*LAYOUTS["same mesh"])
    return {
        f"layer{number // 8}": {
            f"w{at}": jax.device_put(random.standard_normal(shape, np.float32), sharding(shape))
            for at, shape in enumerate(shapes[number : number + 8])
        }
        for number in range(0, len(shapes), 8)
    }


def targets_sharding(num_devices: int, spec: P) -> Callable[[tuple[int, ...]], NamedSharding]:
    mesh = jax.make_mesh((num_devices,), ("fsdp",), devices=jax.devices()[:num_devices])
    return lambda shape: NamedSharding(mesh, spec if len(shape) > 1 else P("fsdp"))


def target(state: Tree, layout: str) -> Tree:
    sharding = targets_sharding(*LAYOUTS[layout])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding(x.shape)), state)


def measure_save(peer: Peer, state: Tree, directory: Path) -> dict[str, float]:
    settle(2 * tree.nbytes(state))
    with Peak() as peak:
        started = time.perf_counter()
        wait = peer.save(state, directory)
        blocking = time.perf_counter() - started
        wait()
        total = time.perf_counter() - started
    files = [path for path in directory.rglob("*") if path.is_file()]
    nbytes = sum(path.stat().st_size for path in files)
    return {
        "save": total,
        "blocking": blocking,
        "save peak": peak.nbytes,
        "bytes": nbytes,
        "files": len(files),
    }


def measure_restores(peer: Peer, state: Tree, directory: Path) -> dict[str, float]:
    for path in directory.rglob("*"):
        if path.is_file():
            path.read_bytes()  # into the page cache
    found = {}
    for layout in LAYOUTS:
        wanted = target(state, layout)
        settle(2 * tree.nbytes(state))
        with Peak() as peak:
            already, started = bytes_read(), time.perf_counter()
            restored = jax.block_until_ready(peer.restore(directory, wanted))
            found[layout] = time.perf_counter() - started
        found[f"{layout} peak"] = peak.nbytes
        found[f"{layout} read"] = bytes_read() - already
        same = jax.tree.map(np.array_equal, *(list(map(jax.tree.leaves, (restored, state)))))
        assert all(same), f"{layout}: not what was saved"
        del restored
    return found


def measure(case: Case, options: argparse.Namespace) -> dict[str, Seconds]:
    """Return what was measured of each peer, and of the bounds."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    state, found, source = make_state(case.shapes), {}, aligned(BLOCK)
    nbytes = tree.nbytes(state)
    for turn in range(options.rounds + 1):  # the first is for warming up
        for name in ["bound", *options.peers] if turn % 2 else reversed(["bound", *options.peers]):
            if name == "t5x" and turn != 1:
                continue
            with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                root = Path(directory)
                if name == "bound":
                    measured = bounds(root, nbytes, source)
                else:
                    measured = measure_save(PEERS[name], state, root)
                    measured |= measure_restores(PEERS[name], state, root)
            for what, value in measured.items() if turn else ():
                found.setdefault(name, {}).setdefault(what, []).append(value)
    return found


def ratio(these: list[float], those: list[float]) -> float:
    """The median of the rounds' ratios: what slows a whole round down cancels out."""
    return statistics.median(a / b for a, b in zip(these, those, strict=False))


def show(case: Case, found: dict[str, Seconds], nbytes: int) -> None:
    bound = found["bound"]
    print(f"\n{case.title}, {nbytes / 1e9:.2f} GB")
    print("  bounds: " + ", ".join(f"{name} {statistics.median(bound[name]):.3f} s" for name in bound))
    print(
        f"  {'':12}{'save s':>8}{'× bound':>8}{'blocks s':>10}{'files':>7}{'× bytes':>8}{'peak ×':>8}", end=""
    )
    print("".join(f"{layout:>12}{'×':>6}{'peak':>6}" for layout in LAYOUTS))
    for name in [name for name in found if name != "bound"]:
        print(row(name, found[name], bound, nbytes))


def row(name: str, of: Seconds, bound: Seconds, nbytes: int) -> str:
    middle = {what: statistics.median(values) for what, values in of.items()}
    saved = (
        f"  {name:12}{middle['save']:8.3f}{ratio(of['save'], bound['write']):8.2f}{middle['blocking']:10.4f}"
        f"{middle['files']:7.0f}{middle['bytes'] / nbytes:8.3f}{middle['save peak'] / nbytes:8.2f}"
    )
    for layout in LAYOUTS:
        times, peak = ratio(of[layout], bound["read"]), middle[f"{layout} peak"] / nbytes
        saved += f"{middle[layout]:12.3f}{times:6.2f}{peak:6.2f}"
    return saved


def amplification(ours: Seconds) -> Iterator[bool]:
    """Judge the bytes that are read."""
    for layout in LAYOUTS:
        read = statistics.median(ours[f"{layout} read"]) / statistics.median(ours["bytes"])
        bar = 1.3 if layout == "other axis" else 1.0
        yield say(f"bytes read of those on disk, {layout}", read, bar)


def times_and_memory(case: Case, found: dict[str, Seconds], nbytes: int) -> Iterator[bool]:
    """Judge ratios of times, and the memory."""
    ours, bound = found["meshwright"], found["bound"]
    yield say("save, × bound", ratio(ours["save"], bound["write"]), case.max_save)
    for layout in LAYOUTS if case.max_restore else ():
        yield say(f"restore {layout}, × bound", ratio(ours[layout], bound["read"]), case.max_restore)
    for layout in LAYOUTS:
        peak = statistics.median(ours[f"{layout} peak"]) / nbytes
        yield say(f"peak of restore {layout}, × state", peak, 1.1)
    yield say("peak of save, × state", statistics.median(ours["save peak"]) / nbytes, 1.1)
    if "orbax" in found:
        most = 1 / 30 if "5,000" in case.title else 0.4
        yield say("save, × Orbax", ratio(ours["save"], found["orbax"]["save"]), most)
        for layout in LAYOUTS:
            yield say(f"restore {layout}, × Orbax", ratio(ours[layout], found["orbax"][layout]), 0.35)


def say(what: str, found: float, bar: float) -> bool:
    print(f"  {'✓' if found <= bar else '✗'} {what}: {found:.3f}, bar {bar:.3g}")
    return found <= bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=["a", "b", "c"], choices=["a", "b", "c"])
    parser.add_argument(
        "--peers", nargs="+", default=["meshwright", "orbax", "safetensors"], choices=list(PEERS)
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where to write; on a real disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options, results, met = parser.parse_args(), {}, []
    if options.tiny:
        options.cases, options.scale, options.rounds = ["a"], 0.002, 1
        missing = [name for name in MODULES if importlib.util.find_spec(MODULES[name]) is None]
        options.peers = [name for name in options.peers if name not in missing]
        print("".join(f"{name} is left out: pip install {name}\n" for name in missing), end="")
    for name in options.cases:
        case = cases(options.scale)[name]
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            results[name] = process.submit(measure, case, options).result()
        nbytes = 4 * sum(map(math.prod, case.shapes))
        show(case, results[name], nbytes)
        if "meshwright" in options.peers:
            met += amplification(results[name]["meshwright"])
            met += [] if options.tiny else times_and_memory(case, results[name], nbytes)
    if options.json:
        versions = {package: version(package) for package in ("jax", "numpy")}
        heading = {"date": date.today().isoformat(), "scale": options.scale} | versions
        options.json.write_text(json.dumps(heading | {"cases": results}, indent=2))
    sys.exit(not all(met))


if __name__ == "__main__":
    main()
