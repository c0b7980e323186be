"""Runs on a real Ray cluster of three nodes on this machine."""

import importlib.util
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

import pytest

from clusters.engines import OnRay, finish, newest, ray_cluster, ray_node, reach, train
from end_to_end.running import losses
from eventually import eventually
from meshwright.errors import Interrupted, UsageError
from meshwright.launch._local import launch_local
from meshwright.launch._ray import launch_ray

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray"
    ),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
KILLED_ONCE = """
import os, sys, time
if not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    time.sleep(1)
    os.kill(os.getpid(), 9)
"""
KILLS_ITS_ACTOR = """
import os, sys, time
with open(sys.argv[1], "a") as started:
    print(os.getpid(), file=started)
if len(open(sys.argv[1]).readlines()) == 1:
    os.kill(os.getppid(), 9)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert launch_local(train(run), 2) == 0
    return losses(run)


def test_a_run_on_two_nodes_ends_with_the_losses_of_two_processes_here(cluster, tmp_path, undisturbed):
    assert launch_ray(train(tmp_path / "run"), 2) == 0
    assert losses(tmp_path / "run") == undisturbed


def test_when_a_node_is_lost_all_start_again_on_what_is_left(cluster, tmp_path, capfd, undisturbed):
    run = tmp_path / "run"

    def lose_a_node():
        eventually(lambda: newest(run) >= 30)
        cluster.remove_node(ray_node(cluster, run), allow_graceful=False)

    with ThreadPoolExecutor() as threads:
        loss = threads.submit(lose_a_node)
        assert launch_ray(train(run), 2, restarts=2) == 0
        loss.result()
    # The process that is left may notice it before Ray does.
    assert re.search(r"lost by Ray|process \d is gone", capfd.readouterr().err)
    assert losses(run) == undisturbed


def test_a_killed_process_starts_all_again(cluster, tmp_path, capfd):
    assert launch_ray([sys.executable, "-c", KILLED_ONCE, str(tmp_path / "killed")], 1, restarts=1) == 0
    assert "failed first, with signal SIGKILL" in capfd.readouterr().err


def test_a_lost_actor_takes_its_process_along_and_all_start_again(cluster, tmp_path, capfd):
    started = tmp_path / "started"
    assert launch_ray([sys.executable, "-c", KILLS_ITS_ACTOR, str(started)], 1, restarts=1) == 0
    assert "lost by Ray" in capfd.readouterr().err
    first, second = started.read_text().split()
    assert first != second
    # It dies of its actor's death, which may be told before the system has taken it away.
    eventually(lambda: not Path(f"/proc/{first}").exists())


def test_exit_codes_and_output_are_those_of_the_processes(cluster, capfd):
    program = "import os, sys; print('I am', os.environ['JAX_PROCESS_ID']); sys.exit(3)"
    assert launch_ray([sys.executable, "-c", program], 2, restarts=3, grace_seconds=20) == 3
    assert "I am 0" in capfd.readouterr().out


def test_ctrl_c_saves_and_ends_the_run(cluster, tmp_path):
    engine = OnRay(cluster, tmp_path / "out", tmp_path / "run")
    engine.start()
    reach(engine, 30)
    engine.cancel()
    assert finish(engine) == 130
    assert "stopped by Ctrl-C after step" in engine.said()
    assert "lost by Ray" not in engine.said()


def test_ctrl_c_ends_the_wait_for_resources(cluster):
    told = Timer(1, lambda: signal.raise_signal(signal.SIGINT))
    told.start()
    with pytest.raises(Interrupted, match="while waiting for Ray's resources"):
        launch_ray(["true"], 9, wait_seconds=100)
    told.join()


def test_what_the_cluster_cannot_give_is_an_error_after_a_while(cluster):
    start = time.monotonic()
    with pytest.raises(UsageError, match=r"did not have 9 × \{'CPU': 1\} within 1 s"):
        launch_ray(["true"], 9, wait_seconds=1)
    assert time.monotonic() - start < 60
