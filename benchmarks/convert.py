"""The memory and the time that `meshwright convert` takes for 2 GB, from and to each format.

Each is a whole process. What they convert is made of a checkpoint as seqax writes it: of a model that is half
one array, in chunks of 16 MiB, and of one array alone, in chunks of 64 MiB. Pages that the system keeps of
files are not counted.
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

from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._formats._export_seqax import export_seqax

MAX_MB = 400
FORMATS = ("seqax", "native", "npz", "safetensors", "t5x")
TINY_GB = 0.04


class Case(NamedTuple):
    """What is converted."""

    name: str
    share_of_one_array: float
    """The rest is in matrices, each a chunk."""
    chunk_mib: int


CASES = (Case("half one array", 0.5, 16), Case("one array", 1, 64))


class Measured(NamedTuple):
    """One conversion."""

    case: str
    source: str
    to: str
    peak_mb: float
    wall_seconds: float


def main() -> None:
    options = _options()
    measured = []
    for case in CASES[:1] if options.tiny else CASES:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            measured += conversions(case, Path(directory), options)
        _show(case, measured, options.gigabytes)
    if options.json:
        Path(options.json).write_text(json.dumps([one._asdict() for one in measured]))
    sys.exit(max(one.peak_mb for one in measured) > MAX_MB)


def conversions(case: Case, directory: Path, options: argparse.Namespace) -> list[Measured]:
    """Convert a checkpoint of each format into each; if tiny, of seqax into each, and of each into native."""
    # In another process, as the largest memory of a process counts for those that it starts, too.
    maker = multiprocessing.get_context("spawn").Process(
        target=make, args=(case, directory / "seqax", options.gigabytes)
    )
    maker.start()
    maker.join()
    measured = []
    for source in FORMATS:
        for to in FORMATS:
            if options.tiny and source != "seqax" and to != "native":
                continue
            made = directory / f"from-{source}" / _name(to)
            cost = convert(directory / _name(source), made, to, options.dtype)
            measured.append(Measured(case.name, source, to, *cost))
            if source == "seqax" != to:
                made.rename(directory / _name(to))
        shutil.rmtree(directory / f"from-{source}")
    return measured


def make(case: Case, directory: Path, gigabytes: float) -> None:
    """Write a model of random numbers."""
    chunk = np.random.default_rng(0).standard_normal((case.chunk_mib * 32, 8192), np.float32)
    num = int(gigabytes * 1024) // case.chunk_mib
    num_in_one = int(num * case.share_of_one_array)
    matrix = LazyArray(chunk.shape, chunk.dtype, lambda index: chunk[index], stored_chunks=chunk.shape)
    rows = LazyArray(
        (num_in_one * len(chunk), 8192),
        chunk.dtype,
        lambda index: chunk[:, index[1]],
        stored_chunks=chunk.shape,
    )
    arrays = {f"params/layers/{n}/w": matrix for n in range(num - num_in_one)} | {"params/embedding": rows}
    export_seqax(as_source({**arrays, "step": np.int32(7)}, "random numbers"), directory, step=7)


def convert(source: Path, made: Path, to: str, dtype: str | None) -> tuple[float, float]:
    """Return the largest resident memory in MB, and the seconds, of a whole process."""
    command = [sys.executable, "-m", "meshwright", "convert", str(source), str(made), "--to", to]
    command += ["--dtype", dtype] if dtype else []
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return usage.ru_maxrss / 1000, time.perf_counter() - started


def _name(format_name: str) -> str:
    return f"{format_name}.npz" if format_name == "npz" else format_name


def _show(case: Case, measured: list[Measured], gigabytes: float) -> None:
    what = f"{gigabytes} GB, {case.name}, chunks of {case.chunk_mib} MiB"
    print(f"{date.today()}: {what}; MB at most (bar {MAX_MB}), s")
    print(" " * 12 + "".join(f"{to:>15}" for to in FORMATS))
    for source in FORMATS:
        row = {one.to: one for one in measured if (one.case, one.source) == (case.name, source)}
        cells = {to: f"{one.peak_mb:9.0f}{one.wall_seconds:6.0f}" for to, one in row.items()}
        print(f"{source:12}" + "".join(f"{cells.get(to, ''):>15}" for to in FORMATS), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--dtype", help="that of the parameters, in each conversion")
    parser.add_argument("--directory", help="where to write the checkpoints; else a temporary one")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    if options.tiny:
        options.gigabytes = TINY_GB
    return options


if __name__ == "__main__":
    main()
