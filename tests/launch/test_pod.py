"""The processes of a JobSet in their pods: one of them tells of all."""

import os
import signal
import subprocess
import sys

import pytest

from eventually import eventually
from meshwright.base._storage._copies import read_text

PROGRAM = """
import os, sys, time
number, folder = int(os.environ["JAX_PROCESS_ID"]), sys.argv[1]
if number == 0:
    open(os.environ["MESHWRIGHT_PROGRESS"], "w").write("40")
if number == 2:
    print("no more memory", flush=True)
    open(f"{folder}/gone", "w").close()
    sys.exit(1)
while True:
    if os.path.exists(f"{folder}/gone"):
        print("Error: process 2 is gone: it was killed")
        sys.exit(6)
    time.sleep(0.02)
"""


@pytest.fixture
def pod(tmp_path):
    """Start a pod of three."""
    started = []

    def start(number, *command, shared=tmp_path):
        command = command or (sys.executable, "-c", PROGRAM, str(tmp_path))
        given = {"JAX_PROCESS_ID": str(number), "JAX_NUM_PROCESSES": "3", "MESHWRIGHT_START": "1"}
        words = ["-m", "meshwright", "launch", "pod", "--name", "train", "--shared", str(shared), "--"]
        started.append(
            subprocess.Popen(
                [sys.executable, *words, *command],
                env={**os.environ, **given, "MESHWRIGHT_NODE": f"node-{number}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


@pytest.fixture(params=["volume", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gcs", "s3"))])
def shared(request, tmp_path):
    return str(tmp_path) if request.param == "volume" else request.getfixturevalue(f"{request.param}_run")


@pytest.mark.slow
def test_one_pod_tells_which_process_failed_first_and_what_was_saved(pod, shared):
    pods = [pod(number, shared=shared) for number in range(3)]
    out, said = zip(*(each.communicate(timeout=400) for each in pods), strict=True)
    assert [each.returncode for each in pods] == [6, 6, 1], said
    assert out[2] == "no more memory\n"  # as it is
    assert ["failed first" in each for each in said] == [True, False, False]
    for told in (
        "process 2 of 3 failed first, with exit code 1. It ran on node-2 (pod ",
        "no more memory",
        "process 0-1: exit code 6 (another process was gone)",
        "the newest checkpoint is of step 40",
        "kubectl delete jobset train, and the same launch",
    ):
        assert told in said[0]
    assert read_text(f"{shared}/train.launch/summary-1.txt").startswith("start 1: process 2 of 3")


def test_each_signal_reaches_the_process_and_its_exit_code_the_pod(pod, tmp_path):
    wait = "open(sys.argv[1], 'w').close(); time.sleep(600)"
    program = f"import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); {wait}"
    one = pod(0, sys.executable, "-c", program, str(tmp_path / "ready"))
    eventually((tmp_path / "ready").exists)
    one.send_signal(signal.SIGTERM)
    assert "failed first" not in one.communicate(timeout=400)[1]
    assert one.returncode == 75


def test_a_pod_passes_on_whole_lines_also_without_a_buffer(tmp_path):
    program = "import os; [os.write(1 + n % 2, (b'err', b'out')[n % 2 == 0] + b'\\n') for n in range(4000)]"
    words = ["-m", "meshwright", "launch", "pod", "--name", "train", "--shared", str(tmp_path), "--"]
    done = subprocess.run(
        [sys.executable, *words, sys.executable, "-c", program],
        env={**os.environ, "JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=400,
    )
    lines = done.stdout.decode().splitlines()
    assert (lines.count("out"), lines.count("err"), len(lines)) == (2000, 2000, 4000)
