"""The manifest of a Kubernetes JobSet: a run whose pods start together, and all again after one has ended.

https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/

Each replica is a Job with the same number of pods, for example the machines of one TPU slice. JAX's
variables are in the manifest, so pods need neither the package `kubernetes` nor rights to read the cluster.
With several replicas no field of Kubernetes is the number of a process; `start_processes` computes it from
JOB_COMPLETION_INDEX, MESHWRIGHT_JOB_INDEX and MESHWRIGHT_PODS_PER_JOB.

A JobSet learns the reason and the message of a Job's failure. A rule of the Job for pods fails it with the
reason PodFailurePolicy, and a message that names the exit code or the condition of the pod:
https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from meshwright.base._internal import check_address, is_address
from meshwright.errors import EXIT_AGAIN, EXIT_CTRL_C, EXIT_DIVERGED, EXIT_INPUT, EXIT_USAGE, UsageError
from meshwright.launch._job import Job

_PORT = 55527
# Name of the Jobs, in the names of pods.
_WORKERS = "workers"
# Name of the container in which the program runs.
_CONTAINER = "main"
_FOR_GOOD = (EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED, EXIT_CTRL_C)
_LONGEST_NAME = 63
# The word of `--shared` for programs that save nothing.
_NOTHING = "none"


@dataclass(frozen=True)
class Pods:
    """The pods of a JobSet.

    Example:
      >>> pods = mw.launch._internal.Pods("registry.example.com/train:1", gpus=8, mounts=("runs:/runs",))
      >>> pods.gpus
      8
    """

    image: str
    """The container's image, in which the program and Meshwright are installed."""
    replicas: int = 1
    """Number of Jobs, which divides the number of processes. Each TPU slice is a Job of its own."""
    gpus: int = 0
    """Number of NVIDIA GPUs of each pod."""
    tpu: str = ""
    """TPUs as `ACCELERATOR:TOPOLOGY:CHIPS`: the two labels of Google's nodes, and the chips of each pod, such
    as `tpu-v5-lite-podslice:4x4:4`."""
    mounts: Sequence[str] = ()
    """Volumes as `CLAIM:PATH`: the name of a PersistentVolumeClaim, and the directory where pods see it."""
    shared: str = ""
    """The folder in which pods leave their ends, for the summary of a start that failed: a directory on a
    volume, or the URL of a store; the first of `mounts` if it is empty. `none` for a program that saves
    nothing: then there is no summary."""
    namespace: str = ""
    """Namespace of the JobSet; that of `kubectl`'s context if it is empty."""


def jobset_manifest(job: Job, pods: Pods) -> str:
    """Return a JobSet as YAML.

    Exit code 75 and evicted pods start all pods again without counting. Exit codes 2, 3, 4 and 130 end the
    JobSet. All other failures start all pods again, at most `job.restarts` times.

    Example:
      >>> command = ("meshwright", "train", "gpt:experiment")
      >>> job = mw.launch._internal.Job(command, num_processes=4, name="gpt")
      >>> pods = mw.launch._internal.Pods("registry.example.com/gpt:1", mounts=("runs:/runs",))
      >>> manifest = mw.launch._internal.jobset_manifest(job, pods)
      >>> manifest.splitlines()[:4]
      ['apiVersion: jobset.x-k8s.io/v1alpha2', 'kind: JobSet', 'metadata:', '  name: gpt']
    """
    _check(job, pods)
    per_job = job.num_processes // pods.replicas
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, **({"namespace": pods.namespace} if pods.namespace else {})},
        "spec": {
            # Process 0's name must resolve before it is ready, since the others wait for it.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": job.restarts, "rules": _jobset_rules()},
            "replicatedJobs": [
                {
                    "name": _WORKERS,
                    "replicas": pods.replicas,
                    "template": {
                        "spec": {
                            "parallelism": per_job,
                            "completions": per_job,
                            "completionMode": "Indexed",
                            # The first pod that fails ends the Job.
                            "backoffLimit": 0,
                            "podFailurePolicy": {"rules": _pod_rules()},
                            "template": {"spec": _pod(job, pods, per_job)},
                        }
                    },
                }
            ],
        },
    }
    return yaml.safe_dump(manifest, sort_keys=False, width=110)


def _check(job: Job, pods: Pods) -> None:
    if job.processes_per_host != 1:
        raise UsageError(
            "launch jobset: each process is a pod, so --processes-per-host must be 1. A process uses all "
            "GPUs of its pod."
        )
    if pods.replicas < 1 or job.num_processes % pods.replicas:
        raise UsageError(
            f"launch jobset: --replicas is {pods.replicas}; it must divide the number of processes, "
            f"{job.num_processes}."
        )
    if pods.gpus and pods.tpu:
        raise UsageError("launch jobset: --gpus and --tpu are both given. Give one of them.")
    if pods.tpu and len(pods.tpu.split(":")) != 3:
        raise UsageError(
            f"launch jobset: --tpu is {pods.tpu!r}; expected ACCELERATOR:TOPOLOGY:CHIPS, such as "
            "tpu-v5-lite-podslice:4x4:4."
        )
    for mount in pods.mounts:
        if not re.fullmatch("[a-z0-9.-]+:/.*", mount):
            raise UsageError(f"launch jobset: --mount is {mount!r}; expected CLAIM:PATH, such as runs:/runs.")
    _shared(pods)
    # Kubernetes appends a random suffix to the names of pods.
    longest = f"{job.name}-{_WORKERS}-{pods.replicas - 1}-{job.num_processes // pods.replicas - 1}-abcde"
    if len(longest) > _LONGEST_NAME:
        raise UsageError(
            f"launch jobset: --name {job.name!r} is too long: the name of a pod would be {longest!r}, "
            f"{len(longest)} characters; Kubernetes allows {_LONGEST_NAME}. Give a name of at most "
            f"{_LONGEST_NAME - len(longest) + len(job.name)}."
        )


def _jobset_rules() -> list[dict[str, Any]]:
    codes = "|".join(map(str, _FOR_GOOD))
    return [
        {
            # A new start would end with the same exit code.
            "name": "repeats",
            "action": "FailJobSet",
            "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": [f"with exit code ({codes}) "],
        },
        {
            # These pods have saved and stopped, or were evicted.
            "name": "stopped",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
        },
    ]


def _pod_rules() -> list[dict[str, Any]]:
    codes = {"containerName": _CONTAINER, "operator": "In", "values": sorted((*_FOR_GOOD, EXIT_AGAIN))}
    return [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": codes},
    ]


def _pod(job: Job, pods: Pods, per_job: int) -> dict[str, Any]:
    resources = {"nvidia.com/gpu": pods.gpus} if pods.gpus else {}
    selector = {}
    if pods.tpu:
        accelerator, topology, chips = pods.tpu.split(":")
        resources = {"google.com/tpu": int(chips)}
        selector = {
            "cloud.google.com/gke-tpu-accelerator": accelerator,
            "cloud.google.com/gke-tpu-topology": topology,
        }
    mounts = dict(mount.split(":", 1) for mount in pods.mounts)
    container = {
        "name": _CONTAINER,
        "image": pods.image,
        # No shell: as the container's first process it would not pass SIGTERM on.
        "command": _command(job, pods),
        "ports": [{"containerPort": _PORT}],
        "env": _variables(job, pods, per_job),
        **({"resources": {"limits": resources}} if resources else {}),
        **(
            {"volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()]}
            if mounts
            else {}
        ),
    }
    claims = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in mounts]
    return {
        # A container that starts again alone would join a run that is gone.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.save_seconds,
        **({"nodeSelector": selector} if selector else {}),
        "containers": [container],
        **({"volumes": claims} if claims else {}),
    }


def _shared(pods: Pods) -> str | None:
    """Return the place where pods leave their ends, or None for a program that saves nothing."""
    shared, paths = pods.shared, [mount.split(":", 1)[1] for mount in pods.mounts]
    if shared == _NOTHING:
        return None
    if is_address(shared):
        check_address(shared)
        return shared
    if not shared and not paths:
        raise UsageError(
            "launch jobset: neither --mount nor --shared is given. The disk of a pod ends with it: the next "
            "start would see no checkpoint, and no process how the others ended. Give what all see, "
            "--mount CLAIM:PATH; or, if workdir is in a store, --shared and a folder there, such as "
            "gs://bucket/runs. "
            f"For a program that saves nothing, such as `meshwright doctor`: --shared {_NOTHING}."
        )
    if shared and not any(Path(shared).is_relative_to(path) for path in paths or ["/"]):
        raise UsageError(
            f"launch jobset: --shared is {shared!r}; expected a directory below a --mount "
            f"({', '.join(paths) or 'such as /runs'}), the URL of a store, or {_NOTHING}."
        )
    return shared or paths[0]


def _command(job: Job, pods: Pods) -> list[str]:
    """Return the command of a pod, which leaves its end where all see it."""
    shared = _shared(pods)
    if shared is None:
        return list(job.command)
    return ["meshwright", "launch", "pod", "--name", job.name, "--shared", shared, "--", *job.command]


def _variables(job: Job, pods: Pods, per_job: int) -> list[dict[str, Any]]:
    start = "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']"
    variables = [
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{job.name}-{_WORKERS}-0-0.{job.name}:{_PORT}"},
        {"name": "JAX_NUM_PROCESSES", "value": str(job.num_processes)},
        {"name": "MESHWRIGHT_START", "valueFrom": {"fieldRef": {"fieldPath": start}}},
        {"name": "MESHWRIGHT_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    if pods.replicas == 1:
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        return [*variables, {"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": index}}}]
    index = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
    return [
        *variables,
        {"name": "MESHWRIGHT_PODS_PER_JOB", "value": str(per_job)},
        {"name": "MESHWRIGHT_JOB_INDEX", "valueFrom": {"fieldRef": {"fieldPath": index}}},
    ]
