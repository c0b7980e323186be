"""`meshwright launch hosts` on two machines with a network of their own, whose cable is pulled."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from clusters.engines import MESHWRIGHT, PATHS, train
from clusters.pods import python_environ
from clusters.slurm import missing
from end_to_end.running import losses
from eventually import eventually
from meshwright.launch._local import launch_local
from meshwright.observe._jsonl import read_jsonl

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(bool(missing()), reason=f"machines of their own: {missing()}"),
]
LEADER, OTHER, CABLE = "10.213.7.1", "10.213.7.2", "mw-cable"
# The host's name is its address, so that Gloo listens there.
MACHINE = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--uts",
    "--net",
    "--fork",
    "--kill-child",
    "sh",
    "-c",
)
BEGIN = 'hostname {address}; ip link set lo up; echo ready; read go; shift 0; exec "$@"'


def ip(*words, pid=None):
    inside = ("nsenter", "-t", str(pid), "-n") if pid else ()
    subprocess.run([*inside, "ip", *words], check=True)


class Machines:
    """Two machines, each with a launcher in a network of its own, and one cable between them."""

    def __init__(self, *command):
        words = [*MESHWRIGHT, "launch", "hosts", "--at", f"{LEADER}:29400", "--hosts", "2", "-n", "1"]
        self.launchers = [self._machine(address, [*words, "--", *command]) for address in (LEADER, OTHER)]
        first, second = (self._inside(launcher) for launcher in self.launchers)
        ip("link", "add", CABLE, "netns", first, "type", "veth", "peer", "name", CABLE, "netns", second)
        for pid, address in ((first, LEADER), (second, OTHER)):
            ip("addr", "add", f"{address}/24", "dev", CABLE, pid=pid)
            ip("link", "set", CABLE, "up", pid=pid)
        self._second = second
        for launcher in self.launchers:
            launcher.stdin.write("go\n")
            launcher.stdin.flush()

    def _machine(self, address, command):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        words = [*MACHINE, BEGIN.format(address=address), "sh", *command]
        environ = python_environ(PATHS) | {"PAUSE": "0.002"}
        return subprocess.Popen(words, env=environ, text=True, **pipes)

    def _inside(self, launcher):
        assert launcher.stdout.readline() == "ready\n"
        (child,) = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        return child

    def pull_the_cable(self, seconds):
        ip("link", "set", CABLE, "down", pid=self._second)
        time.sleep(seconds)
        ip("link", "set", CABLE, "up", pid=self._second)

    def close(self):
        for launcher in self.launchers:
            launcher.kill()
            launcher.communicate()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - python_environ(PATHS).keys():
            patch.delenv(name)
        patch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
        assert launch_local(train(run), 2) == 0
    return losses(run)


@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.nightly)])
def test_after_the_cable_was_pulled_losses_are_those_of_an_undisturbed_run(tmp_path, undisturbed, seconds):
    run = tmp_path / "run"
    machines = Machines(*train(run))
    try:
        metrics = run / "metrics.jsonl"
        eventually(lambda: metrics.exists() and any(report["step"] >= 30 for report in read_jsonl(metrics)))
        machines.pull_the_cable(seconds)
        told = [launcher.communicate(timeout=400)[0] for launcher in machines.launchers]
    finally:
        machines.close()
    assert [launcher.returncode for launcher in machines.launchers] == [0, 0], "\n".join(told)
    assert losses(run) == undisturbed
