"""Start the processes of a run on a Ray cluster, and start all again after a failure or the loss of a node.

Each process is a child of an actor, so that its signals, environment and exit code are its own; it is killed
when the actor dies. Ray itself restarts nothing: a run needs all of its processes, so all start again
together, in new actors, on whatever nodes the cluster has then.
"""

import contextlib
import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from meshwright.base._internal import import_extra, local_path
from meshwright.errors import EXIT_CTRL_C, Interrupted, UsageError
from meshwright.launch._local import GRACE_SECONDS, free_port, read_progress, scratch
from meshwright.launch._output import screen_text
from meshwright.launch._process import LAST_LINES, Child, News, Process, Show
from meshwright.launch._supervise import check, supervise

_POLL_SECONDS = 0.2
# Time after which an actor that does not answer counts as lost.
_SILENT_SECONDS = 30


def launch_ray(
    command: Sequence[str],
    num_processes: int,
    *,
    gpus_per_process: int = 0,
    cpus_per_process: float = 1,
    resources: Mapping[str, float] | None = None,
    address: str | None = None,
    wait_seconds: float = 300,
    grace_seconds: float = GRACE_SECONDS,
    restarts: int = 3,
    min_processes: int | None = None,
    logs: str | Path | None = None,
) -> int:
    """Run `command` in processes on a Ray cluster, and return one exit code for all.

    Output, signals, restarts and the exit code are as in `launch_local`. The command must exist on all
    nodes, and the run directory must be on a disk that all nodes see, or in a store. If `ray.init` was called
    before, that cluster is used. Call this on the main thread.

    Unproven: never run on more than one machine.

    Args:
      command: The program and its arguments.
      num_processes: The number of processes. Ray spreads them over the nodes as far as it can.
      gpus_per_process: Number of GPUs of each process.
      cpus_per_process: Number of CPUs that Ray reserves for each process.
      resources: Further resources of Ray for each process.
      address: Address of the cluster; None for that of RAY_ADDRESS or of this machine.
      wait_seconds: Longest time to wait until the cluster has the resources.
      grace_seconds: As in `launch_local`.
      restarts: As in `launch_local`.
      min_processes: As in `launch_local`; the run also goes on with fewer processes where nodes were lost.
      logs: As in `launch_local`; on this machine.

    Returns:
      As `launch_local`; 137 if a node or an actor was lost.

    Raises:
      UsageError: Ray is not installed, there is no cluster, or it does not have the resources in time.

    Example:
      >>> mw.launch.launch_ray(["python", "train.py"], 4, gpus_per_process=1)  # doctest: +SKIP
      0
    """
    check(grace_seconds, num_processes, restarts, min_processes)
    directory = local_path(logs) if logs else None
    ray = _connected(address)
    bundle = {"CPU": cpus_per_process, "GPU": gpus_per_process, **(resources or {})}
    bundle = {name: number for name, number in bundle.items() if number}
    return supervise(
        partial(_ray_spawner, ray, tuple(command), bundle, wait_seconds),
        num_processes,
        grace_seconds=grace_seconds,
        restarts=restarts,
        min_processes=min_processes,
        logs=directory,
    )


def _connected(address: str | None) -> Any:
    """Return the module `ray`, connected to a cluster."""
    ray = import_extra("ray", extra="ray", needed_by="launch ray")
    if not ray.is_initialized():
        try:
            ray.init(address=address or "auto", log_to_driver=False)
        except ConnectionError as error:
            raise UsageError(
                f"launch ray: there is no Ray cluster at {address or 'the default address'}: {error}\n  "
                "Start one with `ray start --head`, or give its address with --address or RAY_ADDRESS."
            ) from None
    return ray


class ProcessActor:
    """The actor that runs one process."""

    def address(self) -> str:
        """Return an address at which a process here can listen."""
        import ray

        return f"{ray.util.get_node_ip_address()}:{free_port()}"

    def start(self, number: int, command: Sequence[str], environ: Mapping[str, str]) -> str:
        """Start the process, and return the name of its machine."""
        self._lines: deque[tuple[str, bool]] = deque()
        # The directory is removed with the actor.
        self._scratch = scratch()
        self._progress = Path(self._scratch.name, "progress")
        # Ray sets OMP_NUM_THREADS to the CPUs that it reserves, which would slow down the process.
        own = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
        own |= {"PYTHONUNBUFFERED": "1", "MESHWRIGHT_PROGRESS": str(self._progress), **environ}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._child = Child(number, command, own, self._ended, self._keep)
        return self._child.host

    def _keep(self, number: int, line: str, out: TextIO) -> None:
        self._lines.append((line, out is sys.stderr))

    def poll(self) -> tuple[list[tuple[str, bool]], int | None, int | None]:
        """Return new lines, each with whether it is of stderr; the exit code; and the newest saved step."""
        code = None
        if not self._ended.empty():
            self._child.drain(time.monotonic() + 1)
            code = self._child.exit_code
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        return lines, code, read_progress(self._progress)

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        self._child.send(number)


class Remote:
    """A process in an actor, followed by a thread."""

    def __init__(self, ray: Any, actor: Any, number: int, host: str, news: News, show: Show):
        self.number, self.host, self.exit_code = number, host, 0
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.saved: int | None = None
        self._ray, self._actor, self._show, self._is_killed = ray, actor, show, False
        self._thread = threading.Thread(target=self._follow, args=(news,), daemon=True)
        self._thread.start()

    def send(self, number: int) -> None:
        self._actor.send.remote(number)

    def kill(self) -> None:
        """Kill the actor, which takes its process along."""
        self._is_killed = True
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def drain(self, until: float) -> None:
        self._thread.join(max(0, until - time.monotonic()))

    def _follow(self, news: News) -> None:
        code = None
        while code is None:
            time.sleep(_POLL_SECONDS)
            try:
                lines, code, saved = self._ray.get(self._actor.poll.remote(), timeout=_SILENT_SECONDS)
            except (self._ray.exceptions.RayError, TimeoutError) as error:
                lines = [] if self._is_killed else [(f"lost by Ray: {type(error).__name__}", True)]
                code, saved = -signal.SIGKILL, None
            for line, is_error in lines:
                if (text := screen_text(line)) is not None:
                    self.last_lines.append(text)
                self._show(self.number, line, sys.stderr if is_error else sys.stdout)
            self.saved = self.saved if saved is None else saved
        self.exit_code = code
        news.put(self)


class Cluster:
    """Spawner of all processes in actors, for one start."""

    def __init__(self, ray: Any, command: Sequence[str], actors: Sequence[Any], address: str):
        self._ray, self._command, self._actors, self._address = ray, command, actors, address
        self._first: Remote | None = None
        self._token = secrets.token_hex(16)

    def start(self, number: int, news: News, show: Show) -> Process:
        """Start a process."""
        environ = {
            "JAX_COORDINATOR_ADDRESS": self._address,
            "JAX_NUM_PROCESSES": str(len(self._actors)),
            "JAX_PROCESS_ID": str(number),
            "MESHWRIGHT_TOKEN": self._token,
        }
        actor = self._actors[number]
        try:
            host = self._ray.get(actor.start.remote(number, self._command, environ))
        except self._ray.exceptions.RayError:
            # The next poll reports the loss.
            host = "an actor that Ray lost as it began"
        remote = Remote(self._ray, actor, number, host, news, show)
        self._first = self._first or remote
        return remote

    def saved(self) -> int | None:
        """Return the newest step that process 0 has reported; None for none."""
        return self._first.saved if self._first else None


@contextlib.contextmanager
def _ray_spawner(
    ray: Any,
    command: Sequence[str],
    bundle: Mapping[str, float],
    wait_seconds: float,
    num_processes: int,
    is_stopped: Callable[[], bool],
) -> Iterator[Cluster]:
    """Reserve the resources of all processes, and start an actor for each."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([dict(bundle)] * num_processes, strategy="SPREAD")
    try:
        _wait_for(ray, group, f"{num_processes} × {dict(bundle)}", wait_seconds, is_stopped)
        # Ray must restart nothing by itself: all processes start again together.
        host = ray.remote(max_restarts=0, max_task_retries=0)(ProcessActor)
        scheduling = partial(PlacementGroupSchedulingStrategy, group)
        other_resources = {name: number for name, number in bundle.items() if name not in ("CPU", "GPU")}
        actors = [
            host.options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                resources=other_resources,
                scheduling_strategy=scheduling(placement_group_bundle_index=number),
            ).remote()
            for number in range(num_processes)
        ]
        yield Cluster(ray, command, actors, ray.get(actors[0].address.remote()))
    finally:
        remove_placement_group(group)


def _wait_for(
    ray: Any, group: Any, resources: str, wait_seconds: float, is_stopped: Callable[[], bool]
) -> None:
    """Wait until the cluster has given a placement group."""
    end = time.monotonic() + wait_seconds
    while not group.wait(min(1, max(0, end - time.monotonic()))):
        if is_stopped():
            raise Interrupted(
                "stopped while waiting for Ray's resources; nothing was started", exit_code=EXIT_CTRL_C
            )
        if time.monotonic() >= end:
            free = {name: number for name, number in ray.available_resources().items() if ":" not in name}
            raise UsageError(
                f"launch ray: the cluster did not have {resources} within {wait_seconds:g} s. Free are "
                f"{free}. Ask for fewer processes or resources, or wait longer (--wait)."
            )
