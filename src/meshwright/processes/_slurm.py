"""The processes of a SLURM job step, and the end of the job, from the environment variables that SLURM sets.

https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES

`srun` sets all of SLURM_STEP_NODELIST, SLURM_STEP_NUM_TASKS, SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID,
SLURM_PROCID and SLURM_LOCALID. A batch script, a shell inside an allocation or an editor's terminal has only
some of them.
"""

import itertools
import os
import re
from collections.abc import Iterator, Mapping

from meshwright.errors import UsageError
from meshwright.processes._cluster import ALONE_HINT, Cluster, derived_port, integer

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
