"""Each benchmark runs, with the smallest sizes: what is seldom run must not be found broken when it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flags import COMPILED, QUICK

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ACCELERATOR = BENCHMARKS / "accelerator"
ENVIRON = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(COMPILED)}


def run_tiny(script, folder, *options, flags=QUICK, timeout=400):
    command = [sys.executable, str(script), "--tiny", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=folder, env=ENVIRON | {"XLA_FLAGS": flags}, timeout=timeout, **pipes)
    assert done.returncode == 0, f"{script.name} --tiny: exit code {done.returncode}\n{done.stdout}"


def measured(folder, *options):
    """Return what the benchmark of accelerators writes of two virtual devices: its figures and its page."""
    flags = f"{QUICK} --xla_force_host_platform_device_count=2"
    run_tiny(ACCELERATOR, folder, "--out", str(folder), *options, flags=flags, timeout=480)
    return json.loads((folder / "accelerator.json").read_text()), (folder / "accelerator.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(BENCHMARKS.glob("*.py")), ids=lambda script: script.stem)
def test_a_benchmark_runs_with_the_smallest_sizes(script, tmp_path):
    run_tiny(script, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_every_case_of_accelerators_is_measured_and_is_on_the_page_with_the_plan_beside(tmp_path):
    figures, page = measured(tmp_path)
    assert [case.get("error") for case in figures["cases"]] == [None] * len(figures["cases"])
    step = next(case["found"] for case in figures["cases"] if case["name"] == "step")
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


def test_a_case_of_accelerators_that_is_not_reached_in_time_is_on_the_page_with_the_reason(tmp_path):
    figures, page = measured(tmp_path, "--minutes", "0")
    assert {case["error"] for case in figures["cases"]} == {"not reached in the time given"}
    assert "| checkpoint tiny | not reached in the time given |" in page
