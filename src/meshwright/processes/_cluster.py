"""The processes of a run as environment variables describe them, those of several launchers.

Each function of a launcher returns None if that launcher did not start this process. SLURM has a file of its
own, `_slurm.py`.
"""

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


def torchrun(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of `torchrun`, Lightning and Kubeflow's PyTorchJob.

    Job scripts for SLURM often export WORLD_SIZE and MASTER_ADDR for all tasks, but only a launcher sets
    RANK.
    """
    if not environ.get("RANK") and (not environ.get("WORLD_SIZE") or environ.get("SLURM_JOB_ID")):
        return None
    num_processes, rank = integer(environ, "WORLD_SIZE"), integer(environ, "RANK")
    if num_processes == 1:
        return Cluster("torchrun", "one process: WORLD_SIZE=1")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK") if not environ.get(name)]
    if missing:
        raise UsageError(
            f"RANK or WORLD_SIZE is set, as torchrun does, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing. "
            f"Set all of MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK, or none. {ALONE_HINT}"
        )
    address = f"{environ['MASTER_ADDR']}:{_torchrun_port(environ)}"
    reason = f"process {rank} of {num_processes} at {address}, from RANK, WORLD_SIZE and MASTER_ADDR"
    return Cluster("torchrun", reason, address, num_processes, rank, _torchrun_devices(environ))


def open_mpi(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of Open MPI's `mpirun`. https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html."""
    num_processes = integer(environ, "OMPI_COMM_WORLD_SIZE")
    if num_processes is None:
        return None
    if num_processes == 1:
        return Cluster("Open MPI", "one process: OMPI_COMM_WORLD_SIZE=1")
    # Open MPI 5 no longer has a variable with the address of process 0; mpi4py can find it.
    source = "Open MPI" if "OMPI_MCA_orte_hnp_uri" in environ else "Open MPI 5"
    return found_by_jax(source, f"one of {num_processes} processes of mpirun")


def cloud_tpu(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of a Cloud TPU slice, on Compute Engine or on Kubernetes.

    `import jax` sets TPU_ML_PLATFORM if it finds TPU chips, and TPU_SKIP_MDS_QUERY if it finds none.
    """
    if "TPU_ML_PLATFORM" not in environ:
        return None
    names = ("TPU_PROCESS_ADDRESSES_PATH", "TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
    name = next((name for name in names if name in environ), None)
    if name is None:
        skipped = "TPU_SKIP_MDS_QUERY" in environ
        return None if skipped else found_by_jax("Cloud TPU", "a TPU machine that its metadata describes")
    num_slices = integer(environ, "MEGASCALE_NUM_SLICES") or 1
    if name != names[0] and "," not in environ[name] and num_slices == 1:
        return Cluster("Cloud TPU", f"one TPU machine: {name}={environ[name]}")
    return found_by_jax("Cloud TPU", f"one of the TPU machines in {name}")


def kubernetes(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of an indexed Kubernetes Job or JobSet; None for other pods, which run alone."""
    index = environ.get("JOB_COMPLETION_INDEX")
    if "KUBERNETES_SERVICE_HOST" not in environ or index is None:
        return None
    return found_by_jax("Kubernetes", f"pod {index} of an indexed Kubernetes job")


def _torchrun_port(environ: Mapping[str, str]) -> str:
    """Return MASTER_PORT, or another port if torchrun's agent itself listens at this one."""
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return environ.get("JAX_COORDINATOR_PORT") or environ["MASTER_PORT"]
    return derived_port(environ, (integer(environ, "MASTER_PORT") or 0) + 1)


def _torchrun_devices(environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return the one device that a process of torch uses, or None if it is alone on its machine."""
    local_rank = integer(environ, "LOCAL_RANK")
    alone = integer(environ, "LOCAL_WORLD_SIZE") == 1
    return None if local_rank is None or alone else (local_rank,)
