"""Checkpoints in memory beside those on disk: how long a save holds up the loop, and a restart reads.

A state of 128 MB on eight virtual devices is saved by turns to disk, to memory and not at all, in a loop of
steps of 50 ms and more, and read back by turns. It measures the time that the call of a save takes, the time
of ten steps with one save among them, and with one after each, the time until the checkpoint is complete, and
the time of `resume`. A disk is read with its files in the page cache, as after a killed process, and without.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.processes._when import Tick, never

NUM_ARRAYS, COLUMNS = 16, 1024
STEPS = 10
ROUND = [("none", 1), ("disk", 1), ("memory", 1), ("disk", STEPS), ("memory", STEPS)]


class Sizes(NamedTuple):
    """How many rows an array has, how long a step takes at least, and how often all is measured."""

    num_rows: int = 2048  # arrays of 8 MiB
    step_seconds: float = 0.05
    repetitions: int = 5


TINY = Sizes(num_rows=8, step_seconds=0.001, repetitions=1)


def target(num_rows):
    mesh = jax.make_mesh((8,), ("fsdp",))
    sharding = NamedSharding(mesh, P("fsdp"))
    whole = NamedSharding(mesh, P())
    arrays = {
        f"w{i}": jax.ShapeDtypeStruct((num_rows, COLUMNS), jnp.float32, sharding=sharding)
        for i in range(NUM_ARRAYS)
    }
    return {"params": arrays, "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=whole)}


def made(wanted):
    return jax.tree.map(lambda x: jax.device_put(jnp.ones(x.shape, x.dtype), x.sharding), wanted)


@jax.jit
def update(state):
    return jax.tree.map(lambda x: x + 1, state)


def steps(state, save, num_saves, seconds):
    """Make some steps, with saves after the first ones; return the state and the seconds."""
    started = time.perf_counter()
    for number in range(STEPS):
        state = jax.block_until_ready(update(state))
        time.sleep(seconds)
        if number < num_saves:
            save(state)
    return state, time.perf_counter() - started


def await_memory(checkpoints, step):
    while step not in mw.checkpoints._internal.complete_steps(checkpoints.host_memory.directory.path):
        time.sleep(0.001)


def out_of_the_cache(directory):
    """Drop the files of a directory from the page cache."""
    os.sync()
    for path in Path(directory).rglob("*.zip"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_saves(disk, memory, seconds, sizes):
    wanted = target(sizes.num_rows)
    state, step = made(wanted), 0
    with mw.Checkpoints(disk, memory=memory) as checkpoints:
        in_memory, on_disk = checkpoints.saver(never), checkpoints.saver(lambda step: True)
        for kind, num_saves in ROUND * sizes.repetitions:
            calls = []

            def save(state, kind=kind, calls=calls):
                nonlocal step
                step += 1
                began = time.perf_counter()
                if kind == "disk":
                    on_disk(Tick(2 * step + 1), state, None, {})  # memory is due at even steps
                elif kind == "memory":
                    in_memory(Tick(2 * step), state, None, {})
                calls.append(time.perf_counter() - began)

            state, spent = steps(state, save, num_saves, sizes.step_seconds)
            many = "" if num_saves == 1 else ", a save after each"
            seconds[kind, f"ten steps{many}"].append(spent)
            if num_saves == 1:
                seconds[kind, "call"].append(calls[0])
            checkpoints.wait()
            while any(checkpoints.host_memory.directory.path.glob("*.tmp-*")):
                time.sleep(0.001)
        for _ in range(sizes.repetitions):
            for kind in ("disk", "memory"):
                step += 1
                began = time.perf_counter()
                if kind == "disk":
                    on_disk(Tick(2 * step + 1), state, None, {})
                    checkpoints.wait()
                else:
                    in_memory(Tick(2 * step), state, None, {})
                    await_memory(checkpoints, 2 * step)
                seconds[kind, "complete"].append(time.perf_counter() - began)


def measure_restarts(disk, memory, seconds, sizes):
    wanted = target(sizes.num_rows)
    state, step = made(wanted), 10_000
    for _ in range(sizes.repetitions):
        for kind in ("disk", "memory", "disk without cache"):
            step += 2
            try:
                with mw.Checkpoints(disk, memory=memory) as checkpoints:
                    save = checkpoints.saver(lambda step: step % 2 == 1)
                    save(Tick(step - 1), state, None, {})
                    if kind == "memory":
                        save(Tick(step), state, None, {})
                        await_memory(checkpoints, step)
                    checkpoints.wait()
                    raise InterruptedError  # as a kill: what is newer than the disk stays in memory
            except InterruptedError:
                pass
            if kind == "disk without cache":
                out_of_the_cache(disk)
            with mw.Checkpoints(disk, memory=memory) as checkpoints:
                began = time.perf_counter()
                resumed = jax.block_until_ready(checkpoints.resume(wanted, None, otherwise=lambda: None))
                seconds[kind, "resume"].append(time.perf_counter() - began)
                assert checkpoints.is_from_memory == (kind == "memory")
                assert all(bool((x == 1).all()) for x in resumed["params"].values()), "other values"
                del resumed


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file for every single number")
    parser.add_argument("--disk", help="a directory on the disk to measure; a temporary one by default")
    parser.add_argument("--memory", default="/dev/shm", help="a directory in memory")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    chosen = parser.parse_args()
    sizes = TINY if chosen.tiny else Sizes()
    kinds = "none", "disk", "memory", "disk without cache"
    measured = "call", "ten steps", "ten steps, a save after each", "complete", "resume"
    seconds = {(kind, what): [] for kind in kinds for what in measured}
    memory = mw.checkpoints.InMemory(every=2, budget_nbytes=4 << 30, directory=chosen.memory)
    with tempfile.TemporaryDirectory(dir=chosen.disk) as folder:
        measure_saves(f"{folder}/checkpoints", memory, seconds, sizes)
        measure_restarts(f"{folder}/checkpoints", memory, seconds, sizes)
    for (kind, what), each in seconds.items():
        if each:
            listed = " ".join(f"{value:.3f}" for value in sorted(each))
            print(f"{kind:18} {what:28} median {statistics.median(each):.3f} s   ({listed})")
    if chosen.json:
        rows = [
            {"kind": kind, "what": what, "seconds": each} for (kind, what), each in seconds.items() if each
        ]
        chosen.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
