"""The names of `launch` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.launch._hosts import launch_hosts
    from meshwright.launch._job import Job, name_of
    from meshwright.launch._jobset import Pods, jobset_manifest
    from meshwright.launch._local import launch_local
    from meshwright.launch._pod import run_pod
    from meshwright.launch._ray import launch_ray
    from meshwright.launch._slurm import slurm_script, tail_slurm
else:
    __getattr__, __dir__ = lazy_names(__name__)
