"""Plans of a decoder for hardware that is not there: what they say, and what planning takes.

    python benchmarks/plan.py

Each plan is a `meshwright plan` of its own, compiled and traced. For the compiled ones the compilers must be
installed: `meshwright[cuda13]`, `meshwright[tpu]`. What is not is left out, and said. The bars: 2 GB of
memory here for H100s, and a traced peak within a tenth of the compiled one. Seconds are told.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
MAX_BYTES = 2e9  # of a plan for H100s
OFF = 0.1

CASES = (
    ("7b", 64, "h100:32x8", "fsdp=64,tensor=4"),
    ("7b", 1024, "h100:32x8", "fsdp=256"),
    ("7b", 4096, "h100:512x8", "data=16,fsdp=256"),
    ("70b", 256, "h100:32x8", "fsdp=32,tensor=8"),
    ("70b", 2048, "h100:512x8", "data=4,fsdp=128,tensor=8"),
    ("7b", 256, "v5e:16x16", "fsdp=256"),
)
TINY = (("tiny", 8, "h100:8", "fsdp=8"),)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    is_tiny = parser.parse_args().tiny
    cases = TINY if is_tiny else CASES
    missed = []
    print(f"{'':<44}{'seconds':>9}{'GB here':>9}{'peak GiB':>10}{'sent GiB':>10}{'step':>9}{'MFU':>6}")
    for size, batch_size, on, mesh in cases:
        title = f"{size}, {batch_size} rows, {on}, {mesh}"
        settings = (f"size={size}", f"batch_size={batch_size}", "--on", on, "--mesh", mesh)
        peaks = []
        for how in ((), ("--traced",)):
            seconds, found = planned(*settings, *how)
            show(title if not how else "", seconds, found, wanted=not how)
            peaks.append(found["memory"]["peak"] if found["compiled"] or how else None)
            if "H100" in found["hardware"] and found["planning_bytes"] > MAX_BYTES:
                missed.append(f"{title}: over {MAX_BYTES / 1e9:.0f} GB here")
        compiled, traced = peaks
        if compiled and not is_tiny and abs(traced / compiled - 1) > OFF:
            missed.append(f"{title}: traced peak {traced / compiled:.2f} × the compiled one")
    if missed:
        sys.exit("\n".join(["missed:", *missed]))


def planned(*settings: str) -> tuple[float, dict[str, Any]]:
    command = [sys.executable, "-m", "meshwright", "plan", "decoder:experiment", *settings, "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(done.stderr)
    return time.perf_counter() - started, json.loads(done.stdout)


def show(title: str, seconds: float, found: dict[str, Any], *, wanted: bool) -> None:
    if wanted and not found["compiled"]:
        print(f"{title:<44}  not compiled: {found['notes'][-1]}")
        return
    sent = sum(each["sent_bytes"] for each in found["exchanges"]) / 2**30
    here, peak = found["planning_bytes"] / 1e9, found["memory"]["peak"] / 2**30
    figures = f"{seconds:>9.1f}{here:>9.2f}{peak:>10.2f}{sent:>10.1f}{found['time']['seconds']:>9.3f}"
    print(f"{title or '  traced alone':<44}{figures}{found['mfu']:>6.0%}")


if __name__ == "__main__":
    main()
