"""Finds the processes of this run from the arguments and the environment, without using a device.

These are tried in order, and the first one that describes the processes is used:

    arguments of `start_processes`
    JAX_COORDINATOR_ADDRESS [JAX_COORDINATOR_PORT]  JAX_NUM_PROCESSES  JAX_PROCESS_ID  JAX_LOCAL_DEVICE_IDS
    torchrun      MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK
    Open MPI      OMPI_COMM_WORLD_SIZE                            JAX finds the rest
    SLURM         SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_PROCID ...
    Cloud TPU     TPU_ML_PLATFORM, TPU_WORKER_HOSTNAMES ...       JAX finds the rest
    Kubernetes    KUBERNETES_SERVICE_HOST, JOB_COMPLETION_INDEX   JAX finds the rest
    none of them  this process is alone

Open MPI comes before SLURM, because `mpirun` in a SLURM job inherits SLURM's variables. Arguments and JAX_*
variables may also replace single values of a launcher, such as the coordinator or the devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.errors import UsageError
from meshwright.processes._cluster import (
    ALONE_HINT,
    Cluster,
    cloud_tpu,
    integer,
    kubernetes,
    open_mpi,
    slurm,
    torchrun,
)

_LAUNCHERS = (torchrun, open_mpi, slurm, cloud_tpu, kubernetes)
_VARIABLES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}


def detect_processes(
    environ: Mapping[str, str],
    *,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: Sequence[int] | None = None,
) -> Cluster:
    """Return the cluster that the arguments and the environment describe. It connects to nothing.

    Unproven: never run on Cloud TPUs, in Kubernetes or under Open MPI.

    Args:
      environ: The environment variables.
      coordinator: As in `start_processes`.
      num_processes: As in `start_processes`.
      process_id: As in `start_processes`.
      local_device_ids: As in `start_processes`.

    Raises:
      UsageError: A set of variables is incomplete, contradicts itself, or cannot be read.

    Example:
      >>> variables = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
      >>> cluster = mw.parallel.detect_processes(variables)
      >>> cluster.coordinator, cluster.num_processes, cluster.process_id
      ('n1:29500', 2, 1)
    """
    arguments = _without_none(
        coordinator=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        local_device_ids=None if local_device_ids is None else tuple(local_device_ids),
    )
    variables = _jax_variables(environ)
    values = variables | arguments
    sources = {"arguments": arguments, "JAX_* variables": variables}
    source = " and ".join(name for name, settings in sources.items() if settings)
    if values.get("num_processes") == 1:
        return _checked(Cluster(source, f"one process, from {source}", **{**values, "coordinator": None}))
    if values.keys() >= _VARIABLES.keys():
        number, count, address = values["process_id"], values["num_processes"], values["coordinator"]
        reason = f"process {number} of {count} at {address}, from {source}"
        return _checked(Cluster(source, reason, **values))
    launched = next((cluster for launcher in _LAUNCHERS if (cluster := launcher(environ))), None)
    return _checked(_with_values(launched, source, values) if launched else _alone(source, values))


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _jax_variables(environ: Mapping[str, str]) -> dict[str, Any]:
    address, port = environ.get("JAX_COORDINATOR_ADDRESS"), environ.get("JAX_COORDINATOR_PORT")
    if address and port and not _has_port(address):
        address = f"{address}:{port}"
    return _without_none(
        coordinator=address or None,
        num_processes=integer(environ, "JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"),
        process_id=_process_id(environ),
        local_device_ids=_device_ids(environ.get("JAX_LOCAL_DEVICE_IDS")),
    )


def _process_id(environ: Mapping[str, str]) -> int | None:
    """Return JAX_PROCESS_ID, or the number of a process that `meshwright launch jobset` started."""
    job, pods = integer(environ, "MESHWRIGHT_JOB_INDEX"), integer(environ, "MESHWRIGHT_PODS_PER_JOB")
    pod = integer(environ, "JOB_COMPLETION_INDEX")
    if job is not None and pods is not None and pod is not None:
        return job * pods + pod
    return integer(environ, "JAX_PROCESS_ID", "JAX_PROCESS_INDEX")


def _device_ids(text: str | None) -> tuple[int, ...] | None:
    if not text:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"JAX_LOCAL_DEVICE_IDS={text!r} should be whole numbers separated by commas, such as 0,1."
        ) from None


def _with_values(cluster: Cluster, source: str, values: Mapping[str, Any]) -> Cluster:
    """Return the cluster of a launcher with the given values in place of its own."""
    if not values:
        return cluster
    reason = f"{cluster.reason}; {source} change {', '.join(values)}"
    return replace(cluster, source=f"{cluster.source} and {source}", reason=reason, **values)


def _alone(source: str, values: Mapping[str, Any]) -> Cluster:
    settings = [f"{name} ({values[name]})" for name in _VARIABLES if name in values]
    if settings:
        missing = [f"{name} ({variable})" for name, variable in _VARIABLES.items() if name not in values]
        raise UsageError(
            f"{source} give {' and '.join(settings)}, but not {' and '.join(missing)}. "
            f"Give all three to every process. {ALONE_HINT}"
        )
    reason = "one process: neither the arguments nor the environment name other processes"
    return Cluster("nobody", reason, **values)


def _checked(cluster: Cluster) -> Cluster:
    count, index = cluster.num_processes, cluster.process_id
    if count is not None and count < 1:
        raise UsageError(f"{cluster.source}: the number of processes is {count}, but must be at least 1.")
    if count is not None and index is not None and not 0 <= index < count:
        raise UsageError(
            f"{cluster.source}: the process id is {index}, but with {count} process(es) it must be "
            f"from 0 to {count - 1}."
        )
    if cluster.coordinator is not None and not _has_port(cluster.coordinator):
        raise UsageError(
            f"{cluster.source}: the coordinator {cluster.coordinator!r} has no port. Write host:port, or set "
            "JAX_COORDINATOR_PORT."
        )
    return cluster


def _has_port(address: str) -> bool:
    """Return whether an address has a port: `host:1234` and `[::1]:1234` have one, not `host` and `::1`."""
    host, _, port = address.rpartition(":")
    return port.isdecimal() and bool(host) and (":" not in host or host.endswith("]"))
