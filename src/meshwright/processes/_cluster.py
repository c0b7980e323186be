"""The processes of a run as environment variables describe them, those of several launchers.

Each function of a launcher returns None if that launcher did not start this process.
"""

import itertools
import os
import re
from collections.abc import Iterator, Mapping
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
    port = environ.get("JAX_COORDINATOR_PORT") or environ["MASTER_PORT"]
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun's agent itself listens at MASTER_PORT.
        port = derived_port(environ, (integer(environ, "MASTER_PORT") or 0) + 1)
    address = f"{environ['MASTER_ADDR']}:{port}"
    # A process of torch uses one device, unless it is alone on its machine.
    local_rank = None if integer(environ, "LOCAL_WORLD_SIZE") == 1 else integer(environ, "LOCAL_RANK")
    devices = None if local_rank is None else (local_rank,)
    reason = f"process {rank} of {num_processes} at {address}, from RANK, WORLD_SIZE and MASTER_ADDR"
    return Cluster("torchrun", reason, address, num_processes, rank, devices)


def open_mpi(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of Open MPI, https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html."""
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


_JOB_END = "SLURM_JOB_END_TIME"
"""The variable with the time at which the job ends, in seconds since 1970. Not all versions of SLURM set it.
It is set when the job begins, so a later change of the time limit does not change it."""


def slurm(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of a SLURM job step, or None outside of SLURM."""
    job = integer(environ, "SLURM_JOB_ID")
    if job is None:
        return None
    num_tasks = integer(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES") or 1
    if num_tasks == 1:
        return Cluster("SLURM", f"SLURM job {job} has one task")
    _refuse_without_srun(environ, num_tasks)
    nodes = expand_nodes(environ["SLURM_STEP_NODELIST"])
    task = integer(environ, "SLURM_PROCID")
    return Cluster(
        "SLURM",
        f"task {task} of {num_tasks} on {len(nodes)} node(s) from {nodes[0]}, in SLURM job {job}",
        coordinator=f"{nodes[0]}:{derived_port(environ, job)}",
        num_processes=num_tasks,
        process_id=task,
        local_device_ids=_own_devices(environ, _tasks_on_this_node(environ)),
    )


def job_end(environ: Mapping[str, str] = os.environ) -> tuple[str, str, float] | None:
    """Return the scheduler, the variable that has the end of the job, and this time in seconds since 1970.

    The result is None if there is no job, or the scheduler does not say when it ends.
    """
    if not environ.get("SLURM_JOB_ID"):
        return None
    end = integer(environ, _JOB_END)
    return None if end is None else ("SLURM", _JOB_END, float(end))


def expand_nodes(text: str) -> list[str]:
    """Return the host names of a SLURM node list: `"n[08-10],x"` is `["n08", "n09", "n10", "x"]`.

    https://slurm.schedmd.com/sbatch.html#OPT_nodelist
    """
    pattern = r"(?:[^\[\],\s]|\[[^\[\]]+\])+"
    if not re.fullmatch(rf"{pattern}(,{pattern})*", text):
        raise UsageError(f"cannot read the SLURM node list {text!r}; expected a form like node[001-004,7],x.")
    return [name for part in re.findall(pattern, text) for name in _expand(part)]


def _expand(part: str) -> Iterator[str]:
    """Yield the names of a part without commas outside of brackets; the last bracket changes fastest."""
    pieces = re.split(r"\[([^\]]+)\]", part)  # text, bracket, text, bracket, ..., text
    choices = [_numbers(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ("".join(choice) for choice in itertools.product(*choices))


def _numbers(bracket: str) -> list[str]:
    """Return the numbers of `001-003,7` as text: `["001", "002", "003", "7"]`."""
    numbers = []
    for item in bracket.split(","):
        low, _, high = item.partition("-")
        high = high or low
        if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
            raise UsageError(
                f"cannot read [{bracket}] in a SLURM node list; expected a form like [001-004,7]."
            )
        numbers += [str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)]
    return numbers


def _refuse_without_srun(environ: Mapping[str, str], num_tasks: int) -> None:
    needed = (
        *("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"),
        *("SLURM_PROCID", "SLURM_LOCALID"),
    )
    missing = [name for name in needed if not environ.get(name)]
    if missing:
        raise UsageError(
            f"this SLURM job has {num_tasks} tasks, but this process was not started as one of them: "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set. Start it with `srun`, "
            f"also inside a batch script: `srun` gives every task its number. {ALONE_HINT}"
        )


def _tasks_on_this_node(environ: Mapping[str, str]) -> int:
    """Return the number of tasks on this node; `2(x3),1` stands for nodes with 2, 2, 2 and 1 tasks."""
    text, node = environ["SLURM_STEP_TASKS_PER_NODE"], integer(environ, "SLURM_NODEID") or 0
    if not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", text):
        raise UsageError(f"cannot read SLURM_STEP_TASKS_PER_NODE={text!r}; expected a form like 2(x3),1.")
    counts = [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
        for _ in range(int(times or 1))
    ]
    if node >= len(counts):
        raise UsageError(
            f"SLURM_NODEID is {node}, but SLURM_STEP_TASKS_PER_NODE={text!r} lists {len(counts)} node(s), "
            "which are numbered from 0. Start the program with `srun`, which sets both variables."
        )
    return counts[node]


def _own_devices(environ: Mapping[str, str], tasks_per_node: int) -> tuple[int, ...] | None:
    """Return the devices of the node that this task uses, or None if it uses all that it sees.

    With --gpus-per-task, SLURM itself hides the devices of other tasks, and numbers the rest from 0. To
    choose again would leave most tasks without devices. https://github.com/jax-ml/jax/issues/28194
    """
    if tasks_per_node == 1 or environ.get("SLURM_GPUS_PER_TASK"):
        return None
    on_node = integer(environ, "SLURM_GPUS_ON_NODE") or tasks_per_node
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible and len(visible.split(",")) < on_node:
        return None
    if on_node < tasks_per_node:
        raise UsageError(
            f"SLURM gave this node {tasks_per_node} tasks, but only {on_node} GPUs. Each task needs at least "
            f"one GPU: start the job with --ntasks-per-node={on_node}."
        )
    share = on_node // tasks_per_node
    first = share * (integer(environ, "SLURM_LOCALID") or 0)
    return tuple(range(first, first + share))
