"""Four real processes that JAX brought together, where they cannot connect: they compare by collectives."""

import os
import subprocess
from typing import NamedTuple

import pytest

from flags import QUICK
from meshwright.launch._local import free_port

pytestmark = pytest.mark.slow

NUM_PROCESSES = 4
OTHER = 2
"""The process that differs from the rest."""

PROGRAM = """
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw


def refuse(event, arguments):
    # Python's connections, as a firewall would refuse them. Those of JAX are not Python's.
    if event == "socket.connect":
        raise ConnectionRefusedError("no way to the other processes")


def run(name, max_steps=3, factor=1.0):
    table = np.full(8, factor, np.float32)
    return mw.run(
        mw.Experiment(
            workdir=f"{directory}/{name}",
            model=lambda key: {"w": jnp.ones((8, 4))},
            loss=lambda params, batch, key: ((batch["x"] * table) @ params["w"]).mean(),
            optimizer=optax.sgd(0.01),
            input=mw.Input({"x": np.ones((64, 8), np.float32)}, batch_size=16),
            max_steps=max_steps,
            compile=mw.Compile(cache=False),
        )
    )


address, count, me, other, directory = sys.argv[1:]
sys.addaudithook(refuse)
jax.distributed.initialize(address, int(count), int(me), cluster_detection_method="deactivate")
mw.parallel.start_processes()
is_other = me == other
print("equal:", int(run("equal").step), flush=True)
try:
    run("constant", factor=2.0 if is_other else 1.0)
except mw.errors.UsageError as error:
    print("constant:", error, flush=True)
run("steps", max_steps=8 if is_other else 4)
"""


class Ended(NamedTuple):
    code: int
    said: str
    complained: str


@pytest.fixture(scope="module")
def ended(python, tmp_path_factory):
    """How each process ended."""
    address = f"127.0.0.1:{free_port()}"
    environ = {**os.environ, "XLA_FLAGS": QUICK, "JAX_PLATFORMS": "cpu"}
    rest = str(OTHER), str(tmp_path_factory.mktemp("runs"))
    started = [
        subprocess.Popen(
            [*python, "-c", PROGRAM, address, str(NUM_PROCESSES), str(number), *rest],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(NUM_PROCESSES)
    ]
    try:
        told = [process.communicate(timeout=400) for process in started]
    finally:
        for process in started:
            process.kill()
    return [Ended(process.returncode, *each) for process, each in zip(started, told, strict=True)]


def test_that_they_compare_by_collectives_is_said_once(ended):
    told = ["they compare by collectives on their devices" in each.complained for each in ended]
    assert told == [True, False, False, False]


def test_a_run_that_is_alike_on_all_is_trained(ended):
    assert all("equal: 3\n" in each.said for each in ended), ended


def test_all_hear_of_another_constant_in_the_program(ended):
    for each in ended:
        assert "constant: the processes of this run differ in the program of the step:\n" in each.said, each
        assert "on process 2" in each.said


def test_all_end_as_by_a_mistake_and_name_the_first_difference(ended):
    assert [each.code for each in ended] == [2] * NUM_PROCESSES
    for each in ended:
        assert "  max_steps: 4 on processes 0-1, 3; 8 on process 2\n" in each.complained, each
