"""`meshwright plan`, from the shell."""

import json
import os
import subprocess
import sys

import pytest

from flags import QUICK

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | {
    "XLA_FLAGS": QUICK  # and no devices of the tests'
}
DIGITS = "meshwright.cli.demo.digits:experiment"


@pytest.fixture(scope="module")
def shell(python):
    """Return a function that plans."""
    return lambda *words, **environ: subprocess.run(
        [*python, "-m", "meshwright", "plan", *words],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | environ,
    )


@pytest.fixture(scope="module")
def on_four(shell):
    done = shell(DIGITS, "--on", "cpu:4", "--mesh", "data=2,fsdp=2", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_step_is_compiled_for_devices_that_only_the_plan_has(on_four):
    assert on_four["compiled"]
    assert (on_four["num_devices"], on_four["mesh"]) == (4, {"data": 2, "fsdp": 2})
    assert {each["kind"] for each in on_four["exchanges"]} >= {"all-reduce"}


@pytest.mark.slow
def test_the_document_holds_what_the_text_tells(on_four):
    assert on_four["memory"]["fits"]
    assert on_four["memory"]["peak"] >= on_four["memory"]["params"] > 0
    assert on_four["time"]["seconds"] > 0
    assert "measured" in on_four["assumptions"]
    assert on_four["planning_seconds"] > 0
    assert on_four["planning_bytes"] > 0


@pytest.mark.slow
def test_a_step_that_does_not_fit_ends_with_1_and_the_cheapest_changes(shell):
    # Activations of 2**20 examples at a time; a GPU of 85 GB holds a few of their hundred layers.
    settings = ("batch_size=1048576", "--on", "h100:1x8", "--traced", "--json")
    done = shell("tests.cli.deep:experiment", *settings, PYTHONPATH=os.pathsep.join([".", *sys.path]))
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert not document["memory"]["fits"]
    changes = document["changes"]
    assert 1 <= len(changes) <= 3
    assert all(change["plan"]["memory"]["fits"] for change in changes)
    times = [change["plan"]["time"]["seconds"] for change in changes]
    assert times == sorted(times)


@pytest.mark.slow
def test_a_search_ranks_meshes_that_divide(shell):
    done = shell(DIGITS, "--on", "h100:1x4", "--search", "--json")
    assert done.returncode == 0, done.stderr
    tried = json.loads(done.stdout)["tried"]
    assert {"data=4", "data=2,tensor=2", "tensor=4"} <= {each["settings"]["mesh"] for each in tried}
    times = [each["plan"]["time"]["seconds"] for each in tried if each["plan"]["memory"]["fits"]]
    assert times == sorted(times)


def test_unknown_hardware_is_a_usage_error(shell):
    done = shell(DIGITS, "--on", "a100-40g:8")
    assert done.returncode == 2
    assert "Did you mean 'a100-40gb'" in done.stderr


def test_a_mesh_that_a_search_would_not_use_is_a_usage_error(shell):
    done = shell(DIGITS, "--on", "h100:8", "--search", "mesh=fsdp=8")
    assert done.returncode == 2
    assert "mesh=fsdp=8 has no effect with --search" in done.stderr
