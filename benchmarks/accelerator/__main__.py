"""What a GPU or TPU makes of Meshwright, in at most eight minutes, with plans beside: one JSON and one page.

    make bench-accelerator
    python benchmarks/accelerator --out FOLDER --minutes 8
    python benchmarks/accelerator --tiny                    # sizes for a CPU: shows that the script works

Each case is a process of its own, so that one that runs out of memory costs no other, and memory is measured
from zero. The cases come in the order of their worth. Both files are written anew after each case: what ends
early leaves what it has. A case that is not reached or fails is on the page, with the reason.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from page import page

CASES = (
    ("device", ()),
    ("step", ("1b", 2048, "nothing")),
    ("step", ("7b", 4096, "nothing")),
    ("attention", ()),
    ("step", ("1b", 8192, "nothing")),
    ("step", ("1b", 2048, "dots_no_batch")),
    ("loss", ()),
    ("generation", ()),
    ("checkpoint", ()),
    ("loop", ()),
    ("input", ()),
    ("profile", ("1b", 2048, "nothing")),
    ("step", ("1b", 32_768, "nothing")),
    ("step", ("7b", 2048, "nothing")),
    ("step", ("7b", 8192, "nothing")),
    ("step", ("7b", 32_768, "nothing")),
)
TINY = (
    ("device", ()),
    ("step", ("tiny", 64, "nothing")),
    ("attention", ("tiny",)),
    ("loss", ("tiny",)),
    ("generation", ("tiny",)),
    ("checkpoint", ("tiny",)),
    ("loop", ("tiny",)),
    ("input", ("tiny",)),
    ("profile", ("tiny", 64, "nothing")),
)
MEMORY_SHARE = "0.94"  # of a GPU, for JAX: three quarters by default


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="begin no case after this time")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerator"), help="the folder of both files")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)  # in the process of a case
    options = parser.parse_args()
    if options.case:
        from cases import CASES as FUNCTIONS

        name, *arguments = options.case
        print(json.dumps(FUNCTIONS[name](*map(json.loads, arguments))))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"date": date.today().isoformat(), "tiny": options.tiny, "cases": []}
    for case in measured(TINY if options.tiny else CASES, time.monotonic() + 60 * options.minutes):
        found["cases"].append(case)
        (options.out / "accelerator.json").write_text(json.dumps(found, indent=2) + "\n")
        (options.out / "accelerator.md").write_text(page(found))
        print(f"{case['seconds']:6.1f} s  {case['name']} {case['arguments']}  {case.get('error', '')}")
    print(f"written: {options.out}/accelerator.json and accelerator.md")


def measured(cases: Any, deadline: float) -> Iterator[dict[str, Any]]:
    """Yield each case with what it found or why it found nothing."""
    for name, arguments in cases:
        case = {"name": name, "arguments": list(arguments), "seconds": 0.0}
        left = deadline - time.monotonic()
        if left <= 0:
            yield case | {"error": "not reached in the time given"}
            continue
        started = time.monotonic()
        outcome = in_own_process(name, arguments, left)
        yield case | outcome | {"seconds": time.monotonic() - started}


def in_own_process(name: str, arguments: Any, seconds: float) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).parent), "--case", name, *map(json.dumps, arguments)]
    environ = {"XLA_PYTHON_CLIENT_MEM_FRACTION": MEMORY_SHARE, **os.environ}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": "cut off: the time given was over"}
    if done.returncode:
        return {"error": reason_of(done.stderr)}
    return {"found": json.loads(done.stdout.splitlines()[-1])}


def reason_of(stderr: str) -> str:
    """Return the line of a failed process that says why."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["it ended without a word"]
    told = [line for line in lines if "RESOURCE_EXHAUSTED" in line or re.match(r"[\w.]*Error: ", line)]
    return (told or lines)[-1][:300]


if __name__ == "__main__":
    main()
