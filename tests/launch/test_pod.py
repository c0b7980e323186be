"""The processes of a JobSet in their pods: one of them tells of all."""

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, sys, time
number, shared = int(os.environ["JAX_PROCESS_ID"]), sys.argv[1]
if number == 0:
    open(os.environ["MESHWRIGHT_PROGRESS"], "w").write("40")
if number == 2:
    print("no more memory", flush=True)
    sys.exit(1)
while True:
    if os.path.exists(f"{shared}/gone") or os.path.exists(f"{shared}/train.launch/ends-1/2.json"):
        print("Error: process 2 is gone: it was killed")
        sys.exit(6)
    time.sleep(0.02)
"""


@pytest.fixture
def pod(tmp_path):
    """Start a pod; a volume has what an earlier start left there."""
    (tmp_path / "train.launch/ends-0").mkdir(parents=True)
    (tmp_path / "train.launch/ends-0/2.json").write_text("{}")
    started = []

    def start(number, *command):
        command = command or (sys.executable, "-c", PROGRAM, str(tmp_path))
        given = {"JAX_PROCESS_ID": str(number), "JAX_NUM_PROCESSES": "3", "MESHWRIGHT_START": "1"}
        words = ["-m", "meshwright", "launch", "pod", "--name", "train", "--shared", str(tmp_path), "--"]
        started.append(
            subprocess.Popen(
                [sys.executable, *words, *command],
                env={**os.environ, **given},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_one_pod_tells_which_process_failed_first_and_what_was_saved(pod, tmp_path):
    pods = [pod(number) for number in range(3)]
    said = [each.communicate(timeout=60)[1] for each in pods]
    assert [each.returncode for each in pods] == [6, 6, 1], said
    assert ["failed first" in each for each in said] == [True, False, False]
    for told in (
        "process 2 of 3 failed first, with exit code 1",
        "no more memory",
        "process 0-1: exit code 6 (another process was gone)",
        "the newest checkpoint is of step 40",
        "kubectl delete jobset train, and the same launch",
    ):
        assert told in said[0]
    assert (tmp_path / "train.launch/summaries.txt").read_text().startswith("start 1: process 2 of 3")


@pytest.mark.slow
def test_a_pod_that_is_gone_without_a_word_is_the_cause(pod, tmp_path):
    pods = [pod(number) for number in range(2)]
    (tmp_path / "gone").touch()
    said = [each.communicate(timeout=60)[1] for each in pods]
    assert "process 2 of 3 failed first, with signal SIGKILL. It ran on a pod that is gone" in said[0]


def test_each_signal_reaches_the_process_and_its_exit_code_the_pod(pod, tmp_path):
    wait = "open(sys.argv[1], 'w').close(); time.sleep(60)"
    program = f"import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); {wait}"
    one = pod(0, sys.executable, "-c", program, str(tmp_path / "ready"))
    while not (tmp_path / "ready").exists():
        time.sleep(0.02)
    one.send_signal(signal.SIGTERM)
    assert "failed first" not in one.communicate(timeout=60)[1]
    assert one.returncode == 75
