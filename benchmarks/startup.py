"""How long it takes until something happens: imports and `meshwright --help`, each as a whole process.

CPU seconds are the user's and the system's together, over all threads of the process.
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

MAX_RATIO = 1.15  # of `import jax`
MAX_HELP_SECONDS = 0.4

Seconds = dict[str, list[float]]
"""`cpu` and `wall` of one program, a number for each round."""

PROGRAMS = {
    "import jax": ("-c", "import jax"),
    "import meshwright": ("-c", "import meshwright"),
    "import meshwright; meshwright.fit": ("-c", "import meshwright; meshwright.fit"),
    "import jax, optax": ("-c", "import jax, optax"),  # which training needs
    "meshwright --help": ("-m", "meshwright", "--help"),
}


def run(arguments: Sequence[str]) -> tuple[float, float]:
    """Return the CPU and wall seconds of a whole process."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def measure(rounds: int) -> dict[str, Seconds]:
    found = {name: {"cpu": [], "wall": []} for name in PROGRAMS}
    for arguments in PROGRAMS.values():
        run(arguments)  # reads the files from the disk
    for _ in range(rounds):
        for name, arguments in PROGRAMS.items():
            cpu, wall = run(arguments)
            found[name]["cpu"].append(cpu)
            found[name]["wall"].append(wall)
    return found


def ratio(found: dict[str, Seconds], name: str) -> float:
    """The median of the rounds' ratios to `import jax`, in CPU seconds."""
    pairs = zip(found[name]["cpu"], found["import jax"]["cpu"], strict=True)
    return statistics.median(a / b for a, b in pairs)


def show(found: dict[str, Seconds]) -> None:
    print(f"{'':34}{'CPU s':>8}{'ratio':>8}{'wall s':>8}")
    for name, seconds in found.items():
        cpu, wall = statistics.median(seconds["cpu"]), statistics.median(seconds["wall"])
        print(f"{name:34}{cpu:8.2f}{ratio(found, name):8.2f}{wall:8.2f}")
    for name in ("import meshwright", "import meshwright; meshwright.fit"):
        share = ratio(found, name)
        say(share <= MAX_RATIO, f"{name}: {share:.2f} of import jax, bar {MAX_RATIO}")
    seconds = statistics.median(found["meshwright --help"]["cpu"])
    say(seconds < MAX_HELP_SECONDS, f"meshwright --help: {seconds:.2f} s of CPU, bar {MAX_HELP_SECONDS}")


def say(met: bool, what: str) -> None:
    print(f"  {'✓' if met else '✗'} {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU and wall seconds of whole processes that start.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    options = parser.parse_args()
    found = measure(options.rounds)
    show(found)
    if options.json:
        heading = {"date": date.today().isoformat(), "jax": version("jax")}
        options.json.write_text(json.dumps(heading | {"seconds": found}, indent=2))


if __name__ == "__main__":
    main()
