"""Joins the processes of a run into one JAX runtime, with a clear error if some are missing."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import jax

from meshwright.base._internal import allow_files_of, print_line
from meshwright.errors import PeersError, UsageError
from meshwright.processes._cluster import ALONE_HINT, Cluster
from meshwright.processes._compare import compare, compare_over, is_connected, use_exchange
from meshwright.processes._detect import detect_processes
from meshwright.processes._environment import clock_warning, software
from meshwright.processes._leave import exit_after_uncaught_errors
from meshwright.processes._peers import watch_peers
from meshwright.processes._rendezvous import rendezvous, wait_for_coordinator
from meshwright.processes._sockets import own_host

_CONNECT_SECONDS = 120
"""The seconds that JAX may take to connect, after all processes have come to the rendezvous."""
_VERSIONS = "versions and flags"
_GRPC_EXCEPTIONS = "no_grpc_proxy"
_PACKAGES = {"Kubernetes": "kubernetes", "Open MPI 5": "mpi4py"}
"""The packages that JAX needs to find the processes of these launchers."""


def start_processes(
    *,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: Sequence[int] | None = None,
    timeout_seconds: float = 300,
    heartbeat_timeout_seconds: int = 100,
) -> Cluster:
    """Join the other processes of the run, and return the description of all. Collective.

    Call it before anything uses a device. Values that are not given are read from the environment (see
    `detect_processes`). With one process it joins nothing. A JAX runtime that is already initialised, for
    instance by Ray, is used as it is.

    Unproven: never run with more than four processes, or on more than one machine.

    Args:
      coordinator: The address of process 0, `host:port`, with a port that is free there.
      num_processes: The number of processes.
      process_id: The number of this process, from 0.
      local_device_ids: The devices of this machine that this process uses; None means all of them.
      timeout_seconds: The most seconds between the start of the first process and the start of the last.
      heartbeat_timeout_seconds: If JAX gets no heartbeat from a process for this time, it aborts all others.
        This is for machines and networks that fail. A process that ends is noticed at once, and the others
        end with exit code 6. Half of this time is more than a run needs to say which process stands still.

    Raises:
      UsageError: The values are incomplete, a device was used before, or the processes have different
        versions or flags.
      PeersError: Some processes did not come. Every process that came raises this.

    Example:
      >>> mw.parallel.start_processes(num_processes=1).num_processes
      1
    """
    if jax.distributed.is_initialized():
        if not is_connected():
            exit_after_uncaught_errors(jax.process_index())
            compare(_VERSIONS, software)
        return _as_initialised(Cluster("JAX", "the JAX runtime was initialised before"))
    cluster = detect_processes(
        os.environ,
        coordinator=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        local_device_ids=local_device_ids,
    )
    if cluster.num_processes == 1:
        if cluster.local_device_ids is not None:
            # Hide the machine's other GPUs from this process, as `initialize` does among several processes.
            visible = ",".join(map(str, cluster.local_device_ids))
            jax.config.update("jax_cuda_visible_devices", visible)
            jax.config.update("jax_rocm_visible_devices", visible)
        return cluster
    _refuse_when_late()
    exit_after_uncaught_errors(cluster.process_id)
    if cluster.coordinator is None or cluster.num_processes is None or cluster.process_id is None:
        _let_jax_join(cluster, timeout_seconds, heartbeat_timeout_seconds)
        compare(_VERSIONS, software)
        cluster = _as_initialised(cluster)
    else:
        address = cluster.coordinator, cluster.num_processes, cluster.process_id
        _join(cluster, *address, timeout_seconds, heartbeat_timeout_seconds)
    return cluster


def _as_initialised(cluster: Cluster) -> Cluster:
    return replace(cluster, num_processes=jax.process_count(), process_id=jax.process_index())


def _refuse_when_late() -> None:
    """Raise an error if a device was used before, so that the other processes need not wait for this one.

    `jax.distributed.initialize` checks this before it checks its arguments, which are incomplete here.
    """
    try:
        jax.distributed.initialize(cluster_detection_method="deactivate")
    except ValueError:
        return
    except RuntimeError as error:
        raise UsageError(
            "mw.parallel.start_processes() comes too late: JAX has already used its devices. Call it first, "
            "before code that makes an array or calls jax.devices()."
        ) from error


def _join(
    cluster: Cluster,
    coordinator: str,
    num_processes: int,
    process_id: int,
    timeout_seconds: float,
    heartbeat_timeout_seconds: int,
) -> None:
    if process_id == 0:
        allow_files_of(num_processes)
    _go_past_proxies(coordinator)
    token = os.environ.get("MESHWRIGHT_TOKEN", "")
    exchange = rendezvous(
        coordinator, num_processes, process_id, timeout_seconds=timeout_seconds, token=token
    )
    watch = watch_peers(exchange.connections)
    compare_over(exchange, _VERSIONS, software())
    warning = clock_warning(exchange)
    if warning and process_id == 0:
        print_line(f"meshwright: {warning}", sys.stderr)
    use_exchange(exchange)
    if process_id != 0:
        wait_for_coordinator(coordinator)
    # No --xla_cpu_collective_timeout_seconds here: it would also end a run in which a process is only late.
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        cluster.local_device_ids,
        # JAX must not read the environment: under SLURM it would give each process only one device.
        cluster_detection_method="deactivate",
        initialization_timeout=_CONNECT_SECONDS,
        heartbeat_timeout_seconds=heartbeat_timeout_seconds,
        coordinator_bind_address=coordinator if own_host(coordinator) else None,
    )
    watch.was_joined = True


def _go_past_proxies(coordinator: str) -> None:
    """Make gRPC connect to the coordinator without a proxy. It reads this setting only from the environment.

    JAX itself only warns that it may hang because of a proxy.
    """
    if not any("_proxy" in name.lower() for name in os.environ):
        return
    exceptions = os.environ.get(_GRPC_EXCEPTIONS) or os.environ.get("no_proxy")
    host = coordinator.rpartition(":")[0].strip("[]")
    os.environ[_GRPC_EXCEPTIONS] = f"{exceptions},{host}" if exceptions else host
    # The warning is not needed any more.
    jax.config.update("jax_check_proxy_envs", False)


def _let_jax_join(cluster: Cluster, timeout_seconds: float, heartbeat_timeout_seconds: int) -> None:
    for source, package in _PACKAGES.items():
        if cluster.source.startswith(source) and importlib.util.find_spec(package) is None:
            raise UsageError(
                f"this process is {cluster.reason}. For this, JAX needs the package {package!r}: "
                f"pip install {package}.\n  Or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and "
                f"JAX_PROCESS_ID yourself. {ALONE_HINT}"
            )
    try:
        jax.distributed.initialize(
            cluster.coordinator,
            cluster.num_processes,
            cluster.process_id,
            cluster.local_device_ids,
            cluster_detection_method="mpi4py" if cluster.source.startswith("Open MPI 5") else None,
            initialization_timeout=round(timeout_seconds),
            heartbeat_timeout_seconds=heartbeat_timeout_seconds,
        )
    except (RuntimeError, ValueError) as error:
        raise PeersError(
            f"this process is {cluster.reason}, and JAX could not connect it to the others: {error}\n"
            "  Set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID yourself. "
            f"{ALONE_HINT}"
        ) from error
