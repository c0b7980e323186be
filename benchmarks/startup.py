"""How long it takes until something happens: imports and `meshwright --help`, each as a whole process.

CPU seconds are the user's and the system's together, over all threads of the process. The bars are ratios to
those of an import: of JAX, and for all that training needs, of JAX and Optax.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

Seconds = dict[str, list[float]]
"""`cpu` and `wall` of one program, a number for each round."""

PROGRAMS = {
    "import jax": ("-c", "import jax"),
    "import meshwright": ("-c", "import meshwright"),
    "import meshwright; meshwright.fit": ("-c", "import meshwright; meshwright.fit"),
    "import jax, optax": ("-c", "import jax, optax"),  # which training needs
    "meshwright --help": ("-m", "meshwright", "--help"),
}
BARS = {
    "import meshwright": ("import jax", 1.15),
    "import meshwright; meshwright.fit": ("import jax, optax", 1.25),
    "meshwright --help": ("import jax", 0.4),
}


def run(arguments: Sequence[str]) -> tuple[float, float]:
    """Return the CPU and wall seconds of a whole process."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def measure(rounds: int, *, is_warmed_up: bool) -> dict[str, Seconds]:
    found = {name: {"cpu": [], "wall": []} for name in PROGRAMS}
    for arguments in PROGRAMS.values() if is_warmed_up else ():
        run(arguments)  # reads the files from the disk
    for _ in range(rounds):
        for name, arguments in PROGRAMS.items():
            cpu, wall = run(arguments)
            found[name]["cpu"].append(cpu)
            found[name]["wall"].append(wall)
    return found


def ratio(found: dict[str, Seconds], name: str, base: str = "import jax") -> float:
    """The median of the rounds' ratios to another program, in CPU seconds."""
    pairs = zip(found[name]["cpu"], found[base]["cpu"], strict=True)
    return statistics.median(a / b for a, b in pairs)


def show(found: dict[str, Seconds]) -> bool:
    """Print the medians, and return whether the bars are met."""
    print(f"{'':34}{'CPU s':>8}{'ratio':>8}{'wall s':>8}")
    for name, seconds in found.items():
        cpu, wall = statistics.median(seconds["cpu"]), statistics.median(seconds["wall"])
        print(f"{name:34}{cpu:8.2f}{ratio(found, name):8.2f}{wall:8.2f}")
    all_meet = True
    for name, (base, bar) in BARS.items():
        share = ratio(found, name, base)
        print(f"  {'✓' if share <= bar else '✗'} {name}: {share:.2f} of {base}, bar {bar}")
        all_meet &= share <= bar
    return all_meet


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU and wall seconds of whole processes that start.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    found = measure(1 if options.tiny else options.rounds, is_warmed_up=not options.tiny)
    met = show(found)
    if options.json:
        heading = {"date": date.today().isoformat(), "jax": version("jax")}
        options.json.write_text(json.dumps(heading | {"seconds": found}, indent=2))
    sys.exit(not options.tiny and not met)


if __name__ == "__main__":
    main()
