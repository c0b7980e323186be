"""What a run pays for reading its machine: the CPU time of a reading, against the time between two readings.

It includes reading the board of so many processes and looking for slow ones, as process 0 does. NVIDIA's
library is not asked here; its calls wait in C, in the thread beside the loop. The time is told. The bar: a
reading grows no faster than the number of processes, from 8 to 64.
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

from meshwright.processes._heartbeat import Entry, read_entries, write_entry
from meshwright.processes._sensors import machine_reader, worst
from meshwright.processes._slow import INPUT_SECONDS, REPORT_SECONDS, STEP_SECONDS, SlowPeers

SECONDS = 10.0
"""The time between two readings, as `mw.Logging.machine_seconds` is by default."""
FEW, MANY = 8, 64


def entry(process: int, num_processes: int) -> Entry:
    readings = {
        **{f"machine/memory/{number}": 0.5 for number in range(12)},
        INPUT_SECONDS: random.random() / 100,
        REPORT_SECONDS: random.random() / 1000,
        STEP_SECONDS: 0.1,
    }
    whose = {"host": "a", "pid": 1, "born": "1", "namespace": ""}
    where = {"phase": "step", "step": 1, "turns": 1, "beat": 1, "where": "train.py:1 in step", "others": []}
    times = {"still_seconds": 0.0, "limit_seconds": None, "beat_seconds": 1.0, "is_waiting": False}
    return Entry(process=process, num_processes=num_processes, **whose, **where, **times, readings=readings)


def cpu_seconds(num_processes: int, rounds: int) -> float:
    """Return the median CPU time of a reading in a run of so many processes."""
    read, peers, times = machine_reader(), SlowPeers(), []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for number in range(num_processes if num_processes > 1 else 0):
                write_entry(Path(folder), entry(number, num_processes))
            started = time.thread_time()
            own = read()
            told = {each.process: each.readings for each in read_entries(Path(folder)).values()}
            worst([own, *told.values()])
            peers.add(told)
            times.append(time.thread_time() - started)
            assert len(told) == (num_processes if num_processes > 1 else 0), "the board lacks processes"
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    times = {}
    for num_processes in (1, FEW, MANY):
        took = times[num_processes] = cpu_seconds(num_processes, 2 if options.tiny else options.rounds)
        told = f"{1000 * took:.2f} ms of CPU a reading, {100 * took / SECONDS:.4f} % of a core"
        print(f"{num_processes:4} processes: {told}")
    ratio = times[MANY] / times[FEW]
    print(f"{MANY} processes take {ratio:.1f} × the time of {FEW}, at most {MANY // FEW}")
    if not options.tiny and ratio > MANY / FEW:
        raise SystemExit("missed")


if __name__ == "__main__":
    main()
