"""A task of SkyPilot, which finds machines in a cloud, and other ones after they were taken away.

https://docs.skypilot.co/en/latest/reference/yaml-spec.html
"""

import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from meshwright.errors import UsageError
from meshwright.launch._job import Job
from meshwright.launch._shared import pod_command, shared_place

_RUN = """\
export JAX_COORDINATOR_ADDRESS=$(echo "$SKYPILOT_NODE_IPS" | head -n1):8476
export JAX_NUM_PROCESSES=$SKYPILOT_NUM_NODES JAX_PROCESS_ID=$SKYPILOT_NODE_RANK
export MESHWRIGHT_START=$(echo "$SKYPILOT_NODE_IPS" | cksum | cut -d ' ' -f 1)
exec {command}
"""


def sky_task(
    job: Job,
    *,
    accelerators: str = "",
    spot: bool = False,
    setup: str = "",
    mounts: Sequence[str] = (),
    shared: str = "",
) -> str:
    """Return a task for `sky jobs launch` as YAML, with one process on each machine.

    After a failure, one of the processes prints which failed first.

    Args:
      job: The program and the number of its machines.
      accelerators: The accelerators of each machine, such as `H100:8`; empty for machines without.
      spot: True for cheaper machines that the cloud may take away.
      setup: A command that installs what the program needs.
      mounts: Buckets as `ADDRESS:PATH`, such as `s3://bucket/runs:/runs`: an address, and the directory at
        which machines see it.
      shared: Where processes leave their ends, for the summary of a start that failed: a directory below one
        of `mounts`, or the URL of a store; the first of `mounts` if it is empty. `none` for a program that
        saves nothing: then there is no summary.

    Raises:
      UsageError: A value cannot be that of a task.

    Example:
      >>> job = mw.launch.Job(("python", "train.py"), num_processes=2)
      >>> mounts = ("s3://bucket/runs:/runs",)
      >>> mw.launch.sky_task(job, accelerators="H100:8", mounts=mounts).splitlines()[:4]
      ['name: train', 'num_nodes: 2', 'resources:', '  accelerators: H100:8']
    """
    if job.processes_per_host != 1:
        raise UsageError("launch sky: each machine runs one process, so --processes-per-host must be 1.")
    file_mounts = dict(_mount(mount) for mount in mounts)
    place = shared_place("sky", "ADDRESS:PATH", list(file_mounts), shared)
    command = job.shell_command() if place is None else shlex.join(pod_command(job, "sky", place))
    resources = {
        **({"accelerators": accelerators} if accelerators else {}),
        "use_spot": spot,
        "job_recovery": {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": job.restarts},
    }
    task: dict[str, Any] = {"name": job.name, "num_nodes": job.num_processes, "resources": resources}
    if file_mounts:
        task["file_mounts"] = file_mounts
    task["workdir"] = "."
    if setup:
        task["setup"] = setup
    task["run"] = _RUN.format(command=command)
    return yaml.dump(task, Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _mount(text: str) -> tuple[str, dict[str, str]]:
    source, _, path = text.rpartition(":")
    if "://" not in source or not path.startswith("/"):
        raise UsageError(
            f"launch sky: --mount is {text!r}; expected ADDRESS:PATH, such as s3://bucket/runs:/runs."
        )
    return path, {"source": source, "mode": "MOUNT"}
