"""The memory of a step with an adapter, as planned for hardware that is not here."""

import importlib
from pathlib import Path

import pytest

from meshwright.plan import _internal as plan

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.slow
def test_a_step_of_seven_billion_parameters_in_four_bits_fits_into_twelve_gib(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    experiment = importlib.import_module("decoder").experiment
    planned = plan.plan_step(experiment(size="7b", lora=16, base="nf4", batch_size=1), "h100:1")
    assert planned.memory.peak < 12 * 2**30
