"""The faults of `slow_and_stuck.py`, with the commands that must name them."""

from pathlib import Path

from benchmarks.planted.fault import TRAIN, Fault, asked, explained, refused

PROGRAM = Path(__file__).with_name("slow_and_stuck.py")
_FOUR = ("--fake-devices", "4")
_explained, _asked, _refused = explained(PROGRAM), asked(PROGRAM), refused(PROGRAM)

FAULTS = (
    _explained("slow_input", r"input, \d+.\d % of the run: more threads"),
    _explained("slow_tracker", r"report, \d+.\d % of the run: report less often"),
    _explained("slow_save", r"save, \d+.\d % of the run: save less often"),
    _explained("slow_evaluation", r"evaluation, \d+.\d % of the run: evaluate less often"),
    _explained("stalled", r"stall, \d+.\d % of the run: look into the logs"),
    Fault(
        "dies_late",
        PROGRAM,
        ("inspect", "RUN"),
        r"What would help most: lost, \d+.\d % of the run: save more often",
        first=(TRAIN, TRAIN),
    ),
    Fault(
        "waits_for_machines",
        PROGRAM,
        ("inspect", "RUN"),
        r"What would help most: waiting, \d+.\d % of the run: start failed attempts at once",
        first=(TRAIN, TRAIN),
        pause_seconds=8,
    ),
    Fault(
        "much_to_exchange",
        PROGRAM,
        ("inspect", "RUN"),
        r"Exchanges: fsdp \d+.\d % of a profiled step.*most: exchanges, most of all over fsdp",
        first=((*TRAIN, *_FOUR),),
    ),
    Fault("idle_axis", PROGRAM, (*TRAIN, *_FOUR), r"mesh axis 'tensor' of size 2 only repeats work", 2),
    _refused("no_memory", r"exhausted.*activations.*state: params/w.*Planned: .*use more devices", 1),
    _refused(
        "little_memory", r"exhausted.*activations.*Planned: .*Changes that make it fit.*microbatches=2", 1
    ),
    _asked("stuck_in_data", r"stands in the phase input, at .*slow_and_stuck.py:\d+ in hang"),
    _asked("stuck_in_a_tracker", r"stands in the phase report, at .*slow_and_stuck.py:\d+ in hang"),
    _asked("stuck_in_a_save", r"stands in the phase save, at .*slow_and_stuck.py:\d+ in hang"),
    _asked(
        "stuck_at_a_lock", r"stands in the phase evaluation, at .*slow_and_stuck.py:\d+ in wait_for_a_lock"
    ),
    _asked("stopped_by_a_signal", r"is stopped by a signal. To let it go on: `kill -CONT", exit_code=5),
    _asked("keeps_pythons_lock", r"does not answer: .*keeps Python's lock", exit_code=5),
    _asked("killed_without_a_word", r"is gone without a word", exit_code=5),
    Fault(
        "slow_peer",
        PROGRAM,
        ("doctor", "RUN"),
        r"At the last reading, process 1 is slower than the others by \d+ % of each step: it waits for",
        beside=("launch", "local", "-n", "2", "--", "PYTHON", "-m", "meshwright", *TRAIN),
    ),
)
