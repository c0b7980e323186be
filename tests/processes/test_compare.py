"""Four real processes, one of which differs: all end, and say in what and whose it is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launched import by_process
from meshwright.launch._internal import launch_local
from processes.differing import BEGINNINGS, CASES
from soak import cases, rng

NUM_PROCESSES = 4
PROGRAM = Path(__file__).with_name("differing.py")


def drawn():
    """Which cases, and on which process: all kinds before any comes twice."""
    draw, number = rng("one program or none"), cases(few=10, many=100)
    names = [name for _ in range(-(-number // len(CASES))) for name in draw.sample([*CASES], len(CASES))]
    played = [*BEGINNINGS, *names[:number]]
    return [{"what": name, "on": draw.randrange(NUM_PROCESSES)} for name in played]


def expected(case, number):
    """What a process must hear: of its own error it need not say that it is its own."""
    cause = CASES[case["what"]].cause
    if number == case["on"] and cause.startswith("OTHER: "):
        return cause.split(": ")[-1]
    return cause.replace("OTHER", f"process {case['on']}")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """What each process heard of each case."""
    folder, played = tmp_path_factory.mktemp("differing"), drawn()
    (folder / "cases").write_text(json.dumps(played))
    (folder / "said").mkdir()
    command = [sys.executable, str(PROGRAM), str(folder / "cases"), str(folder / "said")]
    assert launch_local(command, NUM_PROCESSES) == 0
    said = [json.loads((folder / f"said/{i}.json").read_text()) for i in range(NUM_PROCESSES)]
    return played, said


def test_what_differs_at_the_start_is_told_before_the_first_step(played):
    for i, case in enumerate(played[0][: len(BEGINNINGS)]):
        for number, said in enumerate(played[1]):
            assert re.search(expected(case, number), said["cases"][i]["message"]), (case, number, said)


@pytest.mark.soak
def test_all_processes_hear_what_differs_and_on_which(played):
    for i, case in enumerate(played[0]):
        for number, said in enumerate(played[1]):
            heard = said["cases"][i]
            assert re.search(expected(case, number), heard["message"]), (case, number, heard)


@pytest.mark.soak
def test_each_difference_is_a_mistake_of_use(played):
    for i, case in enumerate(played[0]):
        if not CASES[case["what"]].cause.startswith("OTHER: "):
            assert [said["cases"][i]["kind"] for said in played[1]] == ["UsageError"] * NUM_PROCESSES, case


def test_what_each_process_may_have_for_itself_is_no_difference(played):
    assert [said["legal"] for said in played[1]] == [4] * NUM_PROCESSES


TRAINED = """
import os
import numpy as np, optax
import meshwright as mw

deployer = mw.Deployer(seed=0, mesh="data=-1", verbose=False)
trainer = mw.Trainer(
    deployer,
    loss=lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean(),
    optimizer=optax.sgd(0.1),
    params={"w": np.ones((8, 4), np.float32)},
)
steps = 4 + 4 * int(os.environ["JAX_PROCESS_ID"])
trainer.fit({"x": np.ones((64, 8), np.float32)}, batch_size=16, max_steps=steps)
"""

INITIALISED_BEFORE = """
import os
import jax
import meshwright as mw

names = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
address, count, me = (os.environ[name] for name in names)
jax.distributed.initialize(address, int(count), int(me), cluster_detection_method="deactivate")
mw.parallel.start_processes()
mw.processes._internal.compare("what all say", lambda: {"word": "the same"})
if me == "1":
    with mw.processes._internal.broadcasting_errors():
        raise mw.errors.InputError("this one has no data")
mw.processes._internal.compare("what all say", lambda: {"word": "the same"})
"""

FLAGGED = """
import os
me = os.environ["JAX_PROCESS_ID"]
os.environ["XLA_FLAGS"] = f"--xla_dump_to=/tmp/{me} --xla_cpu_enable_fast_math={'ft'[int(me)]}"
from meshwright.processes import _internal as processes
processes.start_processes()
"""


def launched(python, program, *, out=False):
    """Run a program on two processes, as a person would from a shell; return its code and words."""
    command = [sys.executable, "-m", "meshwright", "launch", "local", "-n", "2", "--", *python, "-c"]
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([*command, program], env=environ, capture_output=True, text=True, timeout=400)
    return done.returncode, by_process(done.stdout if out else done.stderr)


@pytest.mark.slow
def test_a_script_that_would_wait_for_ever_ends_with_the_code_of_a_mistake(python):
    exit_code, said = launched(python, TRAINED)
    assert exit_code == 2
    assert all(f"[{i}]   fit.max_steps: 4 on process 0, 8 on 1\n" in said for i in range(2))


@pytest.mark.slow
def test_processes_that_jax_brought_together_compare_as_well(python):
    exit_code, said = launched(python, INITIALISED_BEFORE)
    assert exit_code == 3
    assert "[0] meshwright.errors.InputError: process 1: this one has no data" in said


@pytest.mark.slow
def test_flags_are_compared_before_jax_joins_but_for_paths(python):
    exit_code, said = launched(python, FLAGGED)
    assert exit_code == 2
    assert "XLA_FLAGS --xla_cpu_enable_fast_math: f on process 0, t on 1" in said
    assert "dump" not in said.partition("to go on, correct that")[0]  # the command has the flag


FAILING = """
import os
from meshwright.processes import _internal as processes

processes.start_processes()
me = os.environ["JAX_PROCESS_ID"]
on_all, on_lead = processes.on_all, processes.on_lead
acts = (lambda: {}["x"] if me == "1" else 0, lambda: open("/not/there") if me == "1" else 0, lambda: {}["y"])
for on, act in zip((on_all, on_all, on_lead), acts):
    try:
        on(act)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


def test_a_user_s_error_keeps_its_type_where_it_was_raised_and_is_told_elsewhere(python):
    _, said = launched(python, FAILING, out=True)
    assert "[1] KeyError 'x'" in said
    assert "[0] MeshwrightError process 1: KeyError: 'x'" in said
    assert all(f"[{i}] MeshwrightError process 1: FileNotFoundError" in said for i in range(2))
    assert "[0] KeyError 'y'" in said
    assert "[1] MeshwrightError process 0: KeyError: 'y'" in said


LEAVING = """
import os, sys
import jax.numpy as jnp, optax
import meshwright as mw

if os.environ["JAX_PROCESS_ID"] == "1":
    sys.exit(3)

def experiment():
    loss = lambda params, batch: (batch["x"] @ params["w"]).mean()
    return mw.Experiment(workdir="run", model=lambda key: {"w": jnp.ones(4)}, loss=loss, max_steps=2,
        optimizer=optax.sgd(0.1), input=mw.Input({"x": jnp.ones((8, 4))}, batch_size=8))
"""
TRAIN = "import os, sys; from meshwright.cli import main; os.chdir({!r}); sys.exit(main(['train', {!r}]))"


@pytest.mark.slow
def test_a_program_that_leaves_while_it_is_imported_ends_the_run_with_its_exit_code(python, tmp_path):
    (tmp_path / "leaving.py").write_text(LEAVING)
    exit_code, said = launched(python, TRAIN.format(str(tmp_path), "leaving.py:experiment"))
    assert exit_code == 3
    assert "process 1 of 2 failed first, with exit code 3" in said
