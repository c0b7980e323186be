"""Several processes here, on several machines or on Ray, started again after failures; jobs of SLURM and
Kubernetes.

It loads no JAX. A scheduler is a function from a `Job` to the text to submit, as in `_jobset`; a way to start
processes is a `Spawner` for `_supervise`, as in `_ray`.
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.launch._ray import launch_ray
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["launch_ray"]
