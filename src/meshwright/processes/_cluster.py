"""The description of a run's processes, and helpers to read it from environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.errors import UsageError

ALONE_HINT = "To run this process on its own instead, set JAX_NUM_PROCESSES=1."


@dataclass(frozen=True)
class Cluster:
    """The processes of a run, and which of them this process is."""

    source: str
    """The launcher or variables that this description comes from, such as `"SLURM"`."""
    reason: str
    """A text for the user that explains what was found."""
    coordinator: str | None = None
    """`host:port` of process 0; None if there is only one process, or if JAX finds the address."""
    num_processes: int | None = 1
    """The number of processes; None until JAX has found it."""
    process_id: int | None = 0
    """The number of this process, from 0; None until JAX has found it."""
    local_device_ids: tuple[int, ...] | None = None
    """The devices of this machine that this process uses; None means all of them."""


def found_by_jax(source: str, reason: str) -> Cluster:
    """Return a cluster whose processes `jax.distributed.initialize` finds by itself."""
    return Cluster(source, f"{reason}; JAX finds the processes", num_processes=None, process_id=None)


def integer(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the number in the first variable that is set and not empty, or None if there is none."""
    name = next((name for name in names if environ.get(name, "").strip()), None)
    if name is None:
        return None
    try:
        return int(environ[name])
    except ValueError:
        raise UsageError(
            f"the environment variable {name}={environ[name]!r} should be a whole number."
        ) from None


def derived_port(environ: Mapping[str, str], number: int) -> str:
    """Return JAX_COORDINATOR_PORT or, if it is not set, a port that all processes compute from one number.

    JAX does the same: https://github.com/jax-ml/jax/blob/main/jax/_src/clusters/slurm_cluster.py
    """
    return environ.get("JAX_COORDINATOR_PORT") or str(61440 + number % 4096)
