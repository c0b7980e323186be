"""Wrong set-ups of several processes: each is told within 30 s, with which process and what to change."""

import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clusters.engines import PATHS
from clusters.pods import python_environ
from clusters.slurm import missing

pytestmark = pytest.mark.clusters
START = "import meshwright as mw; mw.parallel.start_processes(timeout_seconds=15)"
TRAIN = """
import sys
from meshwright.cli import main
sys.exit(main(["train", "clusters.slowly:experiment", *sys.argv[1:]]))
"""
OTHER_JAX = """
import importlib.metadata as metadata
version = metadata.version
metadata.version = lambda name: "0.0.1" if name == "jax" else version(name)
"""
OWN_NETWORK = ("unshare", "--net", "--fork", "--kill-child", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
OWN_DISK = (
    "unshare",
    "--mount",
    "--fork",
    "--kill-child",
    "sh",
    "-c",
    'mount -t tmpfs none "$1"; shift; exec "$@"',
    "sh",
)


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def one(number, port, *arguments, program=START, of=2, host="127.0.0.1", before=(), **more):
    """Run one process; return its exit code, what it said on stderr, and the seconds that it took."""
    environ = python_environ(PATHS) | {
        "JAX_COORDINATOR_ADDRESS": f"{host}:{port}",
        "JAX_NUM_PROCESSES": str(of),
        "JAX_PROCESS_ID": str(number),
        **more,
    }
    start = time.monotonic()
    command = [*before, sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=400)
    return done.returncode, done.stderr, time.monotonic() - start


def together(*calls):
    """Run processes at once, each of which is a function, and return what they said, checked to be soon."""
    with ThreadPoolExecutor(len(calls)) as threads:
        ended = [each.result() for each in [threads.submit(call) for call in calls]]
    for exit_code, said, seconds in ended:
        assert exit_code != 0, said
        assert seconds < 60, said
    return [said for _, said, _ in ended]


def test_a_name_that_does_not_resolve(port):
    (said,) = together(lambda: one(1, port, host="no-such-host.invalid"))
    assert "could not reach process 0 at no-such-host.invalid" in said
    assert "Name or service not known" in said or "name resolution" in said


def test_a_port_that_another_program_has(port):
    with socket.create_server(("", port)):
        (said,) = together(lambda: one(0, port))
    assert f"process 0 cannot listen at 127.0.0.1:{port}: Address already in use" in said
    assert "Choose another port" in said


def test_two_runs_at_one_port(port):
    first, second = together(lambda: one(0, port), lambda: one(0, port))
    assert "cannot listen" in first + second
    assert "two processes were started as process 0" in first + second


def test_different_numbers_of_processes(port):
    for said in together(lambda: one(0, port, of=2), lambda: one(1, port, of=3)):
        assert "process 1 was started as one of 3 processes, process 0 as one of 2" in said


def test_two_processes_with_one_number(port):
    for said in together(*(lambda number=number: one(number, port, of=3) for number in (0, 1, 1))):
        assert "two processes were both started as process 1" in said


def test_a_process_that_does_not_come(port):
    (said,) = together(lambda: one(0, port, of=3))
    assert "1 of 3 processes arrived" in said
    assert "missing: 1-2" in said


def test_another_version_of_jax(port):
    other = OTHER_JAX + START
    for said in together(lambda: one(0, port), lambda: one(1, port, program=other)):
        assert "jax" in said
        assert "0.0.1 on 1" in said


@pytest.mark.skipif(bool(missing()), reason=f"a network of its own: {missing()}")
def test_a_port_that_is_blocked(port):
    said = together(lambda: one(0, port), lambda: one(1, port, before=OWN_NETWORK))
    assert "missing: 1" in said[0]
    assert "could not reach process 0" in said[1]
    assert "no firewall blocks the connection" in said[1]


def test_different_numbers_of_devices(port, tmp_path):
    def run(number, devices):
        return lambda: one(
            number, port, f"workdir={tmp_path}/run", "max_steps=2", "--fake-devices", devices, program=TRAIN
        )

    for said in together(run(0, 1), run(1, 2)):
        assert "devices: 1 × cpu on process 0, 2 × cpu on 1" in said


def test_another_clock(port):
    late = "import time; now = time.time; time.time = lambda: now() - 3600\n"
    first, second = (lambda: one(0, port)), (lambda: one(1, port, program=late + START))
    with ThreadPoolExecutor(2) as threads:
        (code, said, _), _ = [each.result() for each in [threads.submit(first), threads.submit(second)]]
    assert code == 0
    assert "the clock of process 1 is 3600 s behind that of process 0" in said
    assert "Set the clocks of the machines by NTP" in said


@pytest.mark.skipif(bool(missing()), reason=f"a disk of its own: {missing()}")
def test_no_shared_directory(port, tmp_path):
    def run(number, *before):
        return lambda: one(
            number,
            port,
            f"workdir={tmp_path}/run",
            "max_steps=2",
            "--fake-devices",
            1,
            program=TRAIN,
            before=before,
        )

    for said in together(run(0), run(1, *OWN_DISK, str(tmp_path))):
        assert "shared" in said or "see" in said


def test_variables_of_a_batch_script_without_srun():
    (said,) = together(
        lambda: one("", "", of="", host="", SLURM_JOB_ID="7", SLURM_NTASKS="2", JAX_COORDINATOR_ADDRESS="")
    )
    assert "this SLURM job has 2 tasks, but this process was not started as one of them" in said
    assert "Start it with `srun`" in said


def test_fewer_gpus_than_tasks_on_a_node():
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_STEP_TASKS_PER_NODE": "4",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "3",
        "SLURM_GPUS_ON_NODE": "2",
        "JAX_COORDINATOR_ADDRESS": "",
    }
    (said,) = together(lambda: one("", "", of="", host="", **step))
    assert "4 tasks, but only 2 GPUs" in said
    assert "--ntasks-per-node=2" in said
