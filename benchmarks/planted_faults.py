"""Programs with planted faults: whether the command that is meant for each names it, and in how many seconds.

The seconds are those from the fault until it is named, where a run goes on, and else those of the command.
Modules of `benchmarks/planted` have the programs, and others the faults; to add some, add both, and a line
here.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.planted import slow_and_stuck_faults, wrong_numbers_faults

from meshwright.base._text import aligned

FAULTS = (*slow_and_stuck_faults.FAULTS, *wrong_numbers_faults.FAULTS)
TINY = ("idle_axis",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the faults to play (default: all)")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    names = TINY if options.tiny else options.names
    rows, missed = [("fault", "command", "seconds", "named")], 0
    for fault in FAULTS:
        if names and fault.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = fault.try_in(Path(folder))
        missed += not found.is_named
        rows.append((fault.name, fault.command[0], f"{found.seconds:.1f}", "yes" if found.is_named else "NO"))
        print(rows[-1], file=sys.stderr, flush=True)
        if not found.is_named:
            print(found.said, file=sys.stderr)
    print("\n".join(aligned(rows, right=(2,))))
    print(f"{len(rows) - 1 - missed} of {len(rows) - 1} named")
    if missed:
        raise SystemExit("missed")


if __name__ == "__main__":
    main()
