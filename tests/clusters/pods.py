"""A stand-in for Kubernetes: runs the pods of a JobSet as processes here, and restarts them by its rules.

Each pod has its own host name, and the names of all pods resolve in it. Of a JobSet only the fields that
`meshwright launch jobset` writes are known.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from clusters.slurm import free_ports

_OWN_HOST = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--uts", "bash", "-c")


class JobSet:
    """A JobSet that runs. `log` is what happened: `started`, and then the action after each end."""

    def __init__(self, manifest, folder, environ):
        self.manifest, self.folder, self.environ = yaml.safe_load(manifest), Path(folder), environ
        self.name, spec = self.manifest["metadata"]["name"], self.manifest["spec"]
        (self.workers,) = spec["replicatedJobs"]
        self.job = self.workers["template"]["spec"]
        self.policy, self.restarts, self.log = spec["failurePolicy"], 0, []
        self.pods, self.ended, self.codes = {}, None, []
        """How the JobSet has ended, None before; and the first exit code of each start that failed."""
        self.begins = {}
        """Where the output of each pod of this start begins in its file."""
        self._evicted, self._deleted = set(), False
        (self.port,) = free_ports(1)
        self.hook = lambda: None
        """Called again and again while the pods run."""
        indices = [(r, i) for r in range(self.workers["replicas"]) for i in range(self.job["completions"])]
        hosts = [f"127.0.2.{number + 1} {self._host(*index)}" for number, index in enumerate(indices)]
        (self.folder / "hosts").write_text("\n".join([Path("/etc/hosts").read_text(), *hosts, ""]))
        self._indices = indices

    def _host(self, job, index):
        name = f"{self.name}-{self.workers['name']}-{job}-{index}"
        return f"{name}.{self.name} {name}"

    def start(self):
        self._evicted.clear()
        self.log.append("started")
        container = self.job["template"]["spec"]["containers"][0]
        command = container["command"]
        if command[0] == "meshwright":  # as installed in an image
            command = [sys.executable, "-m", *command]
        for job, index in self._indices:
            annotations = {
                "batch.kubernetes.io/job-completion-index": str(index),
                "jobset.sigs.k8s.io/job-index": str(job),
                "jobset.sigs.k8s.io/restart-attempt": str(self.log.count("started") - 1),
            }
            variables = {each["name"]: _value(each, annotations) for each in container["env"]}
            # Pods have networks of their own, and these do not: another JobSet may run on this machine.
            coordinator = variables["JAX_COORDINATOR_ADDRESS"].rpartition(":")[0]
            variables["JAX_COORDINATOR_ADDRESS"] = f"{coordinator}:{self.port}"
            cluster = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": str(index)}
            host = self._host(job, index).split()[-1]
            inside = f'mount --bind {self.folder}/hosts /etc/hosts; hostname {host}; exec "$@"'
            with (self.folder / f"{host}.out").open("a") as out:
                self.begins[job, index] = out.tell()
                self.pods[job, index] = subprocess.Popen(
                    [*_OWN_HOST, inside, host, *command],
                    env={**self.environ, **cluster, **variables},
                    stdout=out,
                    stderr=out,
                )

    def evict(self, pod):
        """Tell a pod to end, as when its node is drained: SIGTERM, and SIGKILL after the time of grace."""
        self._evicted.add(pod)
        self.pods[pod].send_signal(signal.SIGTERM)

    def lose(self, pod):
        """End a pod as when its node is lost: Kubernetes marks it as disrupted when it notices."""
        self._evicted.add(pod)
        self.pods[pod].kill()

    def delete(self):
        """Delete the JobSet, as `kubectl delete` does; `play` ends the pods."""
        self._deleted = True

    def play(self, seconds=400):
        """Wait for the end, and start all pods again where the rules say so; return how it ended."""
        self.ended = self._play(seconds)
        return self.ended

    def _play(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.hook()
            if self._deleted:
                self._stop()
                self.codes.append(self.pods[0, 0].wait())
                return "Deleted"
            codes = {pod: process.poll() for pod, process in self.pods.items()}
            failed = {pod: code for pod, code in codes.items() if code}
            if failed:
                pod, code = min(failed.items(), key=lambda item: self._reason(*item)[0] is None)
                self.codes.append(code)
                action = self._action(pod, code)
                self.log.append(action)
                self._stop()
                if action == "FailJobSet":
                    return "Failed"
                self.start()
            elif all(code == 0 for code in codes.values()):
                return "Completed"
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {self.log}")

    def _reason(self, pod, code):
        """Return the reason and the message of the Job's failure after a pod has failed."""
        code = code if code > 0 else 128 - code
        for number, rule in enumerate(self.job["podFailurePolicy"]["rules"]):
            matching = f"matching {rule['action']} rule at index {number}"
            if "onPodConditions" in rule and pod in self._evicted:
                return "PodFailurePolicy", f"Pod {pod} has condition DisruptionTarget {matching}"
            if code in rule.get("onExitCodes", {}).get("values", ()):
                return (
                    "PodFailurePolicy",
                    f"Container main for pod {pod} failed with exit code {code} {matching}",
                )
        return None, "BackoffLimitExceeded"

    def _action(self, pod, code):
        reason, message = self._reason(pod, code)
        for rule in self.policy["rules"]:
            patterns = rule.get("onJobFailureMessagePatterns", [""])
            if reason in rule["onJobFailureReasons"] and any(re.search(each, message) for each in patterns):
                return rule["action"]
        self.restarts += 1
        return "FailJobSet" if self.restarts > self.policy["maxRestarts"] else "RestartJobSet"

    def _stop(self):
        """End all pods: SIGTERM, and SIGKILL after the time of grace."""
        for process in self.pods.values():
            process.send_signal(signal.SIGTERM)
        grace = self.job["template"]["spec"]["terminationGracePeriodSeconds"]
        for process in self.pods.values():
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                process.kill()

    def has_ended(self):
        """Return whether all pods of this start have ended."""
        return None not in {process.poll() for process in self.pods.values()}

    def said(self):
        """Return the output of all pods of all starts."""
        return "\n".join(out.read_text() for out in sorted(self.folder.glob("*.out")))

    def close(self):
        for process in self.pods.values():
            process.kill()


def _value(variable, annotations):
    if "value" in variable:
        return variable["value"]
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    if path == "spec.nodeName":
        return "this-node"
    return annotations[re.fullmatch(r"metadata\.annotations\['(.*)'\]", path)[1]]


def python_environ(paths):
    hidden = ("XLA_", "JAX_P")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
    return environ | {"PYTHONPATH": os.pathsep.join(paths)}
