"""What a plan says of memory, network, time and checkpoints."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright import tree
from meshwright.arrays import Casts, cast_dtypes
from meshwright.plan._roofline import StepTime
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


@dataclass(frozen=True)
class Memory:
    """Bytes of one device."""

    params: int
    optimizer: int
    other_state: int
    """Of the state: the step, the seed, the model's own."""
    batch: int
    gradients: int
    temporary: int
    """What else is there while the step runs: activations above all."""
    available: float
    """What the device has."""
    refused: bool = False
    """Whether the compiler found that it is not enough."""

    @property
    def peak(self) -> int:
        """The most at any time."""
        held = self.params + self.optimizer + self.other_state + self.batch
        return held + self.gradients + self.temporary

    @property
    def fits(self) -> bool:
        """Whether the device has as much."""
        return self.peak <= self.available and not self.refused


@dataclass(frozen=True)
class Exchange:
    """The collectives of one kind over the same axes of the mesh, in one step, of one device."""

    kind: str
    axes: tuple[str, ...]
    times: int
    sent_bytes: int
    crosses_groups: bool
    """Whether it goes over the network, and not only over fast links, of a host or a TPU slice."""


@dataclass(frozen=True)
class Plan:
    """What a step takes, and how long."""

    hardware: str
    num_devices: int
    mesh: Mapping[str, int]
    settings: Mapping[str, object]
    """Of the experiment, those that decide what it takes: batch size, microbatches, remat, dtype."""
    compiled: bool
    """Whether it is of the program compiled for this hardware, or else estimated from the traced step."""
    num_params: int
    memory: Memory
    exchanges: tuple[Exchange, ...]
    model_flops: float
    """Of a step on all devices, without what is computed twice."""
    hardware_flops: float
    """With it."""
    time: StepTime
    mfu: float | None
    """Model FLOPs over what the devices can do in that time; None where their peak is not known."""
    assumptions: str
    """Where the rates are from that times rest on."""
    checkpoint: CheckpointCost
    notes: tuple[str, ...]
    """What is worth knowing: what was not counted, and why it was not compiled."""
    planning_seconds: float = 0.0
    planning_bytes: int = 0
    """The most memory that this process ever held."""
