"""The benchmark of accelerators runs wherever JAX does: so it works at once where an accelerator is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "accelerator"


def measured(out, *options):
    environ = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, str(SCRIPT), "--tiny", "--out", str(out), *options]
    subprocess.run(command, env=environ, check=True, timeout=480)
    return json.loads((out / "accelerator.json").read_text()), (out / "accelerator.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_every_case_is_measured_and_is_on_the_page_with_the_plan_beside(tmp_path):
    found, page = measured(tmp_path)
    assert [case.get("error") for case in found["cases"]] == [None] * len(found["cases"])
    step = next(case["found"] for case in found["cases"] if case["name"] == "step")
    assert step["seconds"] > 0
    assert step["planned_bytes"] > 0
    assert "## Not measured" not in page
    titles = (
        "Steps",
        "Causal attention",
        "The loss",
        "Greedy generation",
        "Loop, checkpoints",
        "Where the time",
    )
    assert all(f"## {title}" in page for title in titles)


def test_what_is_not_reached_in_time_is_on_the_page_with_the_reason(tmp_path):
    found, page = measured(tmp_path, "--minutes", "0")
    assert {case["error"] for case in found["cases"]} == {"not reached in the time given"}
    assert "| checkpoint tiny | not reached in the time given |" in page
