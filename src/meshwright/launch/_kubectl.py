"""What `kubectl` knows of a JobSet and its pods."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.launch._jobset import CONTAINER


@dataclass(frozen=True)
class Seen:
    """What Kubernetes knows of a JobSet at a time."""

    end: str = ""
    """`Completed`, `Failed` or `Deleted`; empty while it goes on."""
    why: str = ""
    """What happened, if it is not complete."""
    restarts: int = 0
    begun: Mapping[str, bool] = field(default_factory=dict)
    """The pods whose process has begun, and whether it runs."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """The other pods, and why they wait."""


class KubectlError(Exception):
    """What `kubectl` said last when it failed."""


def look(name: str, where: Sequence[str]) -> Seen:
    """Return what is known of a JobSet now.

    Args:
      name: Its name.
      where: The words for its namespace.

    Raises:
      KubectlError: `kubectl` failed.
    """
    begun, waiting = {}, {}
    for pod in _get(["pods", "-l", label(name)], where)["items"]:
        state, pod_name = _state_of(pod), pod["metadata"]["name"]
        if "running" in state or "terminated" in state:
            begun[pod_name] = "running" in state
        else:
            waiting[pod_name] = _why_waiting(pod, state)
    seen = Seen(begun=begun, waiting=waiting)
    try:
        status = _get(["jobset", name], where).get("status", {})
    except KubectlError as error:
        if "(NotFound)" not in str(error):
            raise
        return replace(seen, end="Deleted", why="was deleted")
    seen = replace(seen, restarts=status.get("restarts", 0))
    for each in status.get("conditions", []):
        if each["type"] in ("Completed", "Failed") and each["status"] == "True":
            return replace(seen, end=each["type"], why=f"has failed: {each.get('message', '')}")
    return seen


def _get(words: Sequence[str], where: Sequence[str]) -> dict[str, Any]:
    command = ["kubectl", "get", *words, "-o", "json", "--request-timeout=20s", *where]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise KubectlError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    return json.loads(done.stdout)


def label(name: str) -> str:
    """Return the label that all pods of a JobSet have."""
    return f"jobset.sigs.k8s.io/jobset-name={name}"


def _state_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the container in which the program runs; empty if there is none yet."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return next((each.get("state", {}) for each in statuses if each["name"] == CONTAINER), {})


def _why_waiting(pod: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    if reason := state.get("waiting", {}).get("reason"):
        return reason
    for each in pod.get("status", {}).get("conditions", []):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return f"{each.get('reason', '')} ({each.get('message', '')})"
    return pod.get("status", {}).get("phase", "Pending")
