"""What a checkpoint costs: bytes, of each host, and seconds."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from meshwright import tree
from meshwright.arrays import Casts, cast_dtypes
from meshwright.tree import PyTree


@dataclass(frozen=True)
class CheckpointCost:
    """Every byte is written once, by one of the hosts that hold it, all hosts at the same time."""

    nbytes: int
    """All of it."""
    host_nbytes: int
    """Of one host, if all write alike."""
    bandwidth: float
    """Bytes a second that one host is taken to write."""

    @property
    def seconds(self) -> float:
        """From the copy to the commit; training goes on meanwhile."""
        return self.host_nbytes / self.bandwidth


def checkpoint_cost(
    state: PyTree,
    casts: Casts,
    num_hosts: int,
    bandwidth: float,
    names: Callable[[str], str | None] | None = None,
) -> CheckpointCost:
    """Return what a checkpoint of a state, of structs, costs that is saved with `casts`, by `names`.

    Raises:
      UsageError: as saving it does.
    """
    leaves = tree.named_leaves(state)
    dtypes = cast_dtypes(leaves, casts) if casts else {}
    saved = {name: x for name, x in leaves.items() if names is None or names(name) is not None}
    nbytes = sum(math.prod(x.shape) * dtypes.get(name, x.dtype).itemsize for name, x in saved.items())
    return CheckpointCost(nbytes, math.ceil(nbytes / num_hosts), bandwidth)
