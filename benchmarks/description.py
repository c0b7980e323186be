"""How long it takes to describe a run of 80 billion parameters, of which nothing is allocated.

Whole processes, imports included: one prints the description, one compares it with that of another size, and
one makes the state as structs with shardings, on virtual devices. The bar: at most 1 GB of memory each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

MAX_GB = 1.0  # the state would be 960
NUM_DEVICES = 256

SHOW = ("-m", "meshwright", "show", "large:experiment")
PROGRAMS = {
    "describe": SHOW,
    "compare": (*SHOW, "layers=96", "--against", "large:experiment"),
    "construct": ("-c", "import large; large.abstract_state()"),
}


def run(arguments: tuple[str, ...]) -> dict[str, float]:
    """Return the wall seconds and the peak resident memory, in GB, of a whole process."""
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={NUM_DEVICES}"}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=Path(__file__).parent / "models",
        env={**os.environ, **flags},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    seconds, process.returncode = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
    if process.returncode != int("--against" in arguments):  # 1 says that they differ
        raise subprocess.CalledProcessError(process.returncode, arguments)
    return {"seconds": seconds, "gb": used.ru_maxrss * 1024 / 1e9}


def show(found: dict[str, list[dict[str, float]]]) -> bool:
    """Print the medians, and return whether all met the bar."""
    print(f"{'':12}{'wall s':>8}{'peak GB':>9}")
    largest = 0.0
    for name, rounds in found.items():
        seconds, gb = (statistics.median(each[what] for each in rounds) for what in ("seconds", "gb"))
        largest = max(largest, gb)
        print(f"{name:12}{seconds:8.2f}{gb:9.2f}  {'✓' if gb < MAX_GB else '✗'} bar {MAX_GB} GB")
    return largest < MAX_GB


def main() -> None:
    parser = argparse.ArgumentParser(description="Wall seconds and memory to describe a very large run.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    rounds = 1 if options.tiny else options.rounds
    found = {name: [run(words) for _ in range(rounds)] for name, words in PROGRAMS.items()}
    met = show(found)
    if options.json:
        heading = {"date": date.today().isoformat(), "jax": version("jax"), "devices": NUM_DEVICES}
        options.json.write_text(json.dumps(heading | {"processes": found}, indent=2))
    sys.exit(not met)


if __name__ == "__main__":
    main()
