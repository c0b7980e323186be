import os
import subprocess

import jax
import pytest

from meshwright.errors import UsageError
from meshwright.processes import _internal as processes


def test_one_process_starts_without_ado():
    assert processes.start_processes(num_processes=1).num_processes == 1
    assert not jax.distributed.is_initialized()


def test_one_process_agrees_with_itself_at_no_cost():
    value = object()
    assert processes.agree(value) is value
    assert processes.gather(value) == [value]
    assert processes.is_lead()
    processes.barrier("here")


def test_one_process_has_nobody_to_abandon():
    processes.exit_now(1)


def test_starting_too_late_is_refused_before_others_wait():
    jax.devices()
    with pytest.raises(UsageError, match="comes too late"):
        processes.start_processes(coordinator="127.0.0.1:1", num_processes=2, process_id=0)


@pytest.mark.parametrize(
    ("environ", "package"),
    [
        ({"KUBERNETES_SERVICE_HOST": "h", "JOB_COMPLETION_INDEX": "0"}, "kubernetes"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpi4py"),
    ],
)
def test_a_launcher_that_needs_a_package_says_which(python, environ, package):
    program = "from meshwright.processes import _internal as processes; processes.start_processes()"
    ended = subprocess.run(
        [*python, "-c", program], env={**os.environ, **environ}, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert f"JAX needs the package {package!r}: pip install {package}" in ended.stderr


def test_a_missing_process_is_an_error_and_not_an_abort(python):
    program = """
from meshwright.processes import _internal as processes
processes.start_processes(coordinator="127.0.0.1:0", num_processes=2, process_id=0, timeout_seconds=0.1)
"""
    ended = subprocess.run([*python, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 6
    assert "error: 1 of 2 processes arrived at 127.0.0.1:0 within 0.1 s; missing: 1." in ended.stderr
