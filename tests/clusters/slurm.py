"""A SLURM of a few nodes on this machine. It needs root, and nothing of it outlives the tests.

Each daemon is process 1 of a namespace with its own processes, mounts and host name, in which the names of
all nodes resolve. When that process is killed, everything that ran on the node is gone, as after a power cut.
"""

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

from eventually import eventually

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "unshare", "setpriv")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

_CONF = """\
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
# The coordinator's port follows from the job's number: two clusters at once must count from different ones.
FirstJobId={port}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
# A requeued job starts when its old credential has expired: after 5 s, the least that SLURM takes.
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
FirstJobId={first_job}
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
CompleteWait=0
KillWait=20
SlurmdTimeout=10
MinJobAge=600
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
_NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000"
_OWN_MACHINE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--uts", "--pid", "--fork")


def missing():
    """Return what this machine lacks for a SLURM of its own, as text; empty if nothing."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if lacking:
        return f"{', '.join(lacking)} missing: apt-get install slurmctld slurmd slurm-client util-linux"
    if os.geteuid() != 0:
        return "nodes with names of their own need root"
    tried = subprocess.run([*_OWN_MACHINE, "--mount-proc", "true"], capture_output=True, text=True)
    return f"this machine has no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Slurm:
    """A running cluster, as a context."""

    def __init__(self, folder: Path, num_nodes: int):
        self.folder, self.names = folder, [f"n{i + 1}" for i in range(num_nodes)]
        self.environ = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons = {}

    def __enter__(self):
        ports = free_ports(1 + len(self.names))
        for name in self.names:
            (self.folder / "spool" / name).mkdir(parents=True)
        (self.folder / "state").mkdir()
        nodes = [_NODE.format(name=name, port=port) for name, port in zip(self.names, ports[1:], strict=True)]
        conf = _CONF.format(port=ports[0], first_job=_first_job(), folder=self.folder, nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(conf)
        known = [f"127.0.1.{i + 1} {name}" for i, name in enumerate(self.names)]
        (self.folder / "hosts").write_text("\n".join([Path("/etc/hosts").read_text(), *known, ""]))
        with contextlib.ExitStack() as if_this_fails:
            if_this_fails.callback(self.close)
            self._daemon("slurmctld", "slurmctld", "-D", "-i", "-c")
            for name in self.names:
                self._daemon(name, "slurmd", "-D", "-N", name)
            idle = f"idle {len(self.names)}"
            eventually(lambda: self.run("sinfo", "-h", "-o", "%T %D", check=False).strip() == idle)
            if_this_fails.pop_all()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for name in list(self._daemons):
            self.cut_power(name)

    def run(self, *words, check=True, **more):
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=300, **more)
        assert done.returncode == 0 or not check, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def job(self, number):
        """Return what SLURM knows of a job, by name."""
        words = self.run("scontrol", "-o", "show", "job", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, number, states):
        eventually(
            lambda: self.job(number)["JobState"] in states, reason=lambda: f"{states}: {self.job(number)}"
        )
        return self.job(number)

    def cut_power(self, name):
        """Kill all that runs on a node at once. SLURM is not told."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def power_on(self, name):
        self._daemon(name, "slurmd", "-D", "-N", name)

    def _daemon(self, name, *words):
        inside = f'mount --bind {self.folder}/hosts /etc/hosts; hostname {name}; "$@" & wait'
        command = [*_OWN_MACHINE, "--kill-child", "--mount-proc", "bash", "-c", inside, name, *words]
        with (self.folder / f"{name}.out").open("a") as out:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )


def _first_job():
    """Return the first job's number, another for each worker: coordinators' ports are made from numbers."""
    return 1 + 500 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def free_ports(number):
    """Return ports of this machine that nothing uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in sockets]
