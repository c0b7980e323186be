"""Planted faults, each named by the command that is meant for it: `benchmarks/planted_faults.py`.

CI plays every third, `make soak` all.
"""

import pytest
from benchmarks.planted_faults import FAULTS


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=pytest.mark.long if number % 3 else ())
        for number, fault in enumerate(FAULTS)
    ],
)
def test_a_planted_fault_is_named_by_the_command_that_is_meant_for_it(fault, tmp_path):
    found = fault.try_in(tmp_path)
    assert found.is_named, found.said
