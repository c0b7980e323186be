"""Starting the processes of a run: on this machine, on Ray, or as a job of SLURM or Kubernetes.

`_local` and `_ray` start processes; `_supervise` passes signals on, and starts all again as long as
`_restarts` allows; `_summary` says which failed first.
`_hosts` lets launchers on several machines act together: `_members` has their messages, `_lead` and `_follow`
the rules, `_link` the connections.
`_job` describes a job for a scheduler; `_slurm` and `_jobset` write it as a script or manifest.
`_pod` runs a process in a pod of a JobSet; `_ends` has what pods tell each other of their ends. `_tail` shows
the output of a job of SLURM.
May import ground rooms; nothing here imports JAX. Add a scheduler as a file with a function from a `Job` to
the text to submit, and its options in `cli/_launch_commands.py`.
"""

from meshwright.launch._hosts import launch_hosts
from meshwright.launch._job import Job, name_of
from meshwright.launch._jobset import Pods, jobset_manifest
from meshwright.launch._local import launch_local
from meshwright.launch._pod import run_pod
from meshwright.launch._ray import launch_ray
from meshwright.launch._slurm import slurm_script
from meshwright.launch._tail import tail_slurm

__all__ = [
    "Job",
    "Pods",
    "jobset_manifest",
    "launch_hosts",
    "launch_local",
    "launch_ray",
    "name_of",
    "run_pod",
    "slurm_script",
    "tail_slurm",
]
