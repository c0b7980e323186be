"""Processes that are slower than the others, and those that only vary."""

import pytest

from meshwright.processes._slow import (
    INPUT_SECONDS,
    REPORT_SECONDS,
    STEP_SECONDS,
    SlowPeers,
    slow_processes,
)
from soak import cases, rng

CLOCK = "machine/megahertz/device"
DRAWS = {
    "alike": lambda draw: draw.gauss(0.01, 0.002),
    "normal": lambda draw: abs(draw.gauss(0.3, 0.1)),
    "skewed": lambda draw: draw.lognormvariate(-2, 1),
    "exponential": lambda draw: draw.expovariate(5),
    "with spikes": lambda draw: 0.01 * draw.random() + 2 * (draw.random() < 0.05),
}
"""The seconds of a step of one second that healthy processes wait for examples."""
NUM_PROCESSES = (2, 3, 4, 16, 64)


def told(waits, reports=0.0):
    return {
        number: {INPUT_SECONDS: wait, REPORT_SECONDS: reports, STEP_SECONDS: 1.0}
        for number, wait in enumerate(waits)
    }


def names(num_windows, make):
    """Return the processes that are named, by the number of readings until then."""
    peers = SlowPeers()
    return {at: found for at in range(num_windows) if (found := peers.add(make()))}


@pytest.mark.soak
@pytest.mark.parametrize("kind", DRAWS)
def test_of_processes_that_are_alike_fewer_than_one_is_named_in_ten_thousand_readings(kind):
    draw, healthy = rng(f"peers that are {kind}"), DRAWS[kind]
    total = cases(few=4_000, many=200_000)
    alarms = sum(
        len(names(total // each // len(NUM_PROCESSES), lambda: told(healthy(draw) for _ in range(each))))  # noqa: B023
        for each in NUM_PROCESSES
    )
    assert alarms <= max(1, total // 10_000)


@pytest.mark.parametrize("kind", ["alike", "normal", "with spikes"])
@pytest.mark.parametrize("number", NUM_PROCESSES)
def test_a_process_that_waits_for_more_than_a_step_longer_is_named_soon(kind, number):
    draw, healthy = rng(f"a slow peer among {number} that are {kind}"), DRAWS[kind]
    found = names(60, lambda: told(healthy(draw) + 1.2 * (each == 1) for each in range(number)))
    [[slow]] = [each for each in found.values() if each]
    assert (slow.process, slow.cause) == (1, "input")
    assert min(found) < 30


def test_what_a_slow_process_does_is_said_in_its_figures():
    steady = [told([0.01, 0.31, 0.01])] * 2
    [slow] = slow_processes(steady)
    assert str(slow) == (
        "process 1 is slower than the others by 30 % of each step: it waits for examples for 310 ms a step, "
        "the others 10 ms"
    )


def test_a_device_with_a_lower_clock_is_named():
    [slow] = slow_processes([{each: {CLOCK: 1980.0 - 900 * (each == 2)} for each in range(4)}])
    assert str(slow) == (
        "process 2 is slower than the others: the clock of a device of it is at 1080 MHz, where those of the "
        "others have 1980"
    )


def test_nothing_follows_from_one_process_or_from_old_readings():
    assert slow_processes([told([5.0])]) == []
    peers = SlowPeers()
    times = told([0.01, 0.9])  # nobody has made further steps, though other readings change
    changing = ({n: {**each, "machine/busy/cpu": 1 / k} for n, each in times.items()} for k in range(1, 100))
    assert all(peers.add(each) == [] for each in changing)
