"""Planted faults, each named by the command that is meant for it: `benchmarks/planted_faults.py`.

CI plays one for each command, `make nightly` all.
"""

from collections import Counter

import pytest
from benchmarks.planted_faults import FAULTS

DAILY = (
    "slow_input",
    "no_memory",
    "stopped_by_a_signal",
    "NaN: update",
    "spike: scale",
    "resume: loader",
)
"""One for each command: `inspect`, `train`, `doctor`, `nan`, `report` and `verify-resume`."""


def marked(fault):
    return pytest.mark.slow if fault.name in DAILY else pytest.mark.nightly


def test_each_command_has_one_that_is_played_each_time():
    daily = Counter(fault.command[0] for fault in FAULTS if fault.name in DAILY)
    assert daily == dict.fromkeys({fault.command[0] for fault in FAULTS}, 1)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("fault", [pytest.param(x, id=x.name, marks=marked(x)) for x in FAULTS])
def test_a_planted_fault_is_named_by_the_command_that_is_meant_for_it(fault, tmp_path):
    found = fault.try_in(tmp_path)
    assert found.is_named, found.said
