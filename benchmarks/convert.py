"""The memory and the time that `meshwright convert` takes for 2 GB, from and to each format.

Each is a whole process that takes what the one before made. The first is a checkpoint as seqax writes
it, in chunks of 16 MiB. Pages that the system keeps of files are not counted.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshwright.checkpoint import LazyArray, as_source, export_seqax

MAX_MB = 400
CHAIN = ("native", "seqax", "npz", "safetensors", "native")


class Measured(NamedTuple):
    """One conversion."""

    source: str
    to: str
    peak_mb: float
    wall_seconds: float


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        measured = chain(Path(directory), options.gigabytes)
    print(f"{date.today()}: {options.gigabytes} GB, peaks of whole processes, at most {MAX_MB} MB")
    for one in measured:
        print(f"{one.source:>12} -> {one.to:12} {one.peak_mb:6.0f} MB {one.wall_seconds:6.1f} s")
    if options.json:
        Path(options.json).write_text(json.dumps([one._asdict() for one in measured]))
    sys.exit(max(one.peak_mb for one in measured) > MAX_MB)


def chain(directory: Path, gigabytes: float) -> list[Measured]:
    """Convert a checkpoint into each format in turn, from the one before."""
    source, name = directory / "seqax", "seqax"
    # In another process, as the largest memory of a process counts for those that it starts, too.
    maker = multiprocessing.get_context("spawn").Process(target=make, args=(source, gigabytes))
    maker.start()
    maker.join()
    measured = []
    for number, to in enumerate(CHAIN):
        made = directory / f"{number}-{to}{'.npz' * (to == 'npz')}"
        measured.append(Measured(name, to, *convert(source, made, to)))
        shutil.rmtree(source) if source.is_dir() else source.unlink()
        source, name = made, to
    return measured


def make(directory: Path, gigabytes: float) -> None:
    """Write a model of half its bytes in one array, and half in matrices of 32 MiB."""
    rows = np.random.default_rng(0).standard_normal((1024, 8192), np.float32)
    num = int(gigabytes * 16)
    matrix = LazyArray(rows.shape, rows.dtype, lambda index: rows[index], stored_chunks=(512, 8192))
    large = LazyArray(
        (num, *rows.shape), rows.dtype, lambda index: rows[index[1:]][None], stored_chunks=(1, 512, 8192)
    )
    arrays = {f"params/layers/{n}/w": matrix for n in range(num)} | {"params/embedding": large}
    export_seqax(as_source({**arrays, "step": np.int32(7)}, "random numbers"), directory, step=7)


def convert(source: Path, made: Path, to: str) -> tuple[float, float]:
    """Return the largest resident memory in MB, and the seconds, of a whole process."""
    command = [sys.executable, "-m", "meshwright", "convert", str(source), str(made), "--to", to]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return usage.ru_maxrss / 1000, time.perf_counter() - started


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--directory", help="where to write the checkpoints; else a temporary one")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
