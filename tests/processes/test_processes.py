"""Two real processes: what they agree on and train, how they stop together, and how one leaves alone."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from meshwright.launch._internal import launch_local
from processes.training import trained

PROGRAM = """
import json, os, pathlib, sys, time
from meshwright.processes import _internal as processes

os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"
where, number, then = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
cluster = processes.start_processes(timeout_seconds=400)
me = cluster.process_id
said = {
    "agree": processes.agree({"from": me, "text": "x" * 1000 * me}),
    "gather": processes.gather([me, "long " * 50 * me, None]),
    "lead": processes.is_lead(),
}
if then == "fail" and me == 1:
    raise ValueError("this one process fails")
if then == "before":
    sys.path.insert(0, sys.argv[4])
    from processes.training import trained
    said["trained"] = trained()
if then == "before" and me == 1:
    os.kill(os.getpid(), number)
    time.sleep(1.5)  # JAX looks once a second
with processes.stop_signals() as signals:
    for step in range(1001, 1_000_000):
        processes.barrier(f"step {step}")
        if then == "during" and me == 1 and step == 1003:
            os.kill(os.getpid(), number)
        if signals.stop(step):
            said["step"] = step
            break
(where / f"{me}.json").write_text(json.dumps(said))
sys.exit(signals.interruption.exit_code if signals.interruption else 0)
"""


TESTS = str(Path(__file__).parent.parent)


def run(python, where, number, then):
    command = [*python, "-c", PROGRAM, str(where), str(int(number)), then, TESTS]
    exit_code = launch_local(command, 2, grace_seconds=20)
    said = [json.loads(path.read_text()) for path in sorted(where.glob("*.json"))]
    return SimpleNamespace(exit_code=exit_code, said=said)


@pytest.fixture(scope="module")
def terminated(python, tmp_path_factory):
    """Two processes that train a little and resume at step 1000; the second gets SIGTERM before that."""
    return run(python, tmp_path_factory.mktemp("terminated"), signal.SIGTERM, "before")


@pytest.fixture(scope="module")
def ctrl_c(python, tmp_path_factory):
    """Two processes, of which the second gets Ctrl-C in its third step."""
    return run(python, tmp_path_factory.mktemp("ctrl_c"), signal.SIGINT, "during")


def test_all_agree_with_process_0(terminated):
    assert [said["agree"] for said in terminated.said] == [{"from": 0, "text": ""}] * 2


def test_all_gather_the_same_in_the_order_of_the_processes(terminated):
    assert [said["gather"] for said in terminated.said] == [[[0, "", None], [1, "long " * 50, None]]] * 2


def test_one_process_leads(terminated):
    assert [said["lead"] for said in terminated.said] == [True, False]


def test_sigterm_before_the_first_step_is_not_lost(terminated):
    steps = [said.get("step") for said in terminated.said]
    assert steps == [steps[0]] * 2
    assert terminated.exit_code == 75


@pytest.mark.slow
def test_training_fitting_and_predicting_on_two_are_as_on_one(terminated):
    expected = trained()
    for said in terminated.said:
        for found, value in zip(jax.tree.leaves(said["trained"]), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(found, value, rtol=2e-5)
    assert expected["is_frozen"]
    assert expected["losses"][-1] < expected["losses"][0]


def test_predictions_are_whole_on_both_of_two_processes_and_one_writes_them(terminated):
    for said in terminated.said:
        written, found = said["trained"]["predicted"]
        assert written == found
        assert len(found) == 21


def test_an_experiment_on_two_writes_each_output_once_and_goes_by_one_clock(terminated):
    for said in terminated.said:
        described = said["trained"]["described"]
        assert list(described["outputs"]) == [f"step_0000000{step}.jsonl" for step in (2, 3, 4)]
        assert all([row["id"] for row in rows] == [*range(21)] for rows in described["outputs"].values())
        assert described["all_heard_process_0"]


def test_an_experiment_on_two_has_the_metric_of_all_predictions_on_both(terminated):
    of_both = [said["trained"]["described"]["scores"] for said in terminated.said]
    assert of_both[0] == of_both[1]
    assert of_both[0].keys() == {"few/error", "few/correlation"}


def test_ctrl_c_to_one_stops_both_after_one_step(ctrl_c):
    steps = [said["step"] for said in ctrl_c.said]
    assert steps == [steps[0]] * 2
    assert ctrl_c.exit_code == 130


@pytest.mark.slow
def test_an_uncaught_error_in_one_ends_all_with_its_own_message(python, tmp_path, capfd):
    assert run(python, tmp_path, 0, "fail").exit_code == 1
    report = capfd.readouterr().err.partition("process 1 of 2 failed first, with exit code 1.")[2]
    assert "ValueError: this one process fails" in report


LATE = """
import os, signal, time
from meshwright.processes import _internal as processes

if processes.start_processes(timeout_seconds=400).process_id == 0:
    processes.barrier("the last step")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(2.5)  # JAX looks once a second; the other process leaves
else:
    processes.barrier("the last step")
"""


@pytest.mark.slow
def test_a_signal_after_the_last_step_keeps_no_process_from_leaving(python):
    assert launch_local([*python, "-c", LATE], 2) == 0
