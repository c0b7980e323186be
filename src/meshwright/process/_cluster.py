"""Facts about the processes of a run, read from environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.errors import UsageError

ALONE_HINT = "To run this process on its own instead, set JAX_NUM_PROCESSES=1."


@dataclass(frozen=True)
class Cluster:
    """The processes of a run, as one of them sees it."""

    source: str
    """Who said so: `"SLURM"`, `"JAX_* variables"`, ..."""
    reason: str
    """The same in one sentence, for people."""
    coordinator: str | None = None
    """`host:port` of process 0; None where there is one process or JAX finds it."""
    num_processes: int | None = 1
    """None until JAX has found out."""
    process_id: int | None = 0
    """None until JAX has found out."""
    local_device_ids: tuple[int, ...] | None = None
    """The devices of this machine that are this process's own; None means all of them."""


def found_by_jax(source: str, reason: str) -> Cluster:
    """Return a cluster that `jax.distributed.initialize` knows how to join by itself."""
    return Cluster(source, f"{reason}; JAX finds the processes", num_processes=None, process_id=None)


def integer(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first of the variables `names` that is set and not empty, as a number."""
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
    """Return JAX_COORDINATOR_PORT, or else a port made of a number that all processes know, as JAX does.

    https://github.com/jax-ml/jax/blob/main/jax/_src/clusters/slurm_cluster.py
    """
    return environ.get("JAX_COORDINATOR_PORT") or str(61440 + number % 4096)
