"""Planted faults, each named by the command that is meant for it: `benchmarks/planted_faults.py`."""

import pytest
from benchmarks.planted_faults import FAULTS


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_planted_fault_is_named_by_the_command_that_is_meant_for_it(fault, tmp_path):
    found = fault.try_in(tmp_path)
    assert found.is_named, found.said
