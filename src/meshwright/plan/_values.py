"""The parts of a plan: memory, network traffic, time and checkpoints."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwright.base._internal import PyTree, tree
from meshwright.checkpoints._internal import Casts, cast_dtypes
from meshwright.plan._roofline import StepTime
from meshwright.training._internal import OneForwardOneBackward, Ring


@dataclass(frozen=True)
class CheckpointCost:
    """The size of a checkpoint and the time to write it.

    Each byte is written once, by one of the hosts that hold it; all hosts write at the same time.
    """

    nbytes: int
    """Bytes of the whole checkpoint."""
    host_nbytes: int
    """Bytes that one host writes, if all hosts write equally much."""
    bandwidth: float
    """Bytes per second that one host is assumed to write."""

    @property
    def seconds(self) -> float:
        """Seconds from the copy to the commit; training continues meanwhile."""
        return self.host_nbytes / self.bandwidth


def checkpoint_cost(
    state: PyTree,
    casts: Casts,
    num_hosts: int,
    bandwidth: float,
    names: Callable[[str], str | None] | None = None,
) -> CheckpointCost:
    """Return the cost of a checkpoint of `state`."""
    leaves = tree.named_leaves(state)
    dtypes = cast_dtypes(leaves, casts) if casts else {}
    saved = {name: x for name, x in leaves.items() if names is None or names(name) is not None}
    nbytes = sum(math.prod(x.shape) * dtypes.get(name, x.dtype).itemsize for name, x in saved.items())
    return CheckpointCost(nbytes, math.ceil(nbytes / num_hosts), bandwidth)


@dataclass(frozen=True)
class Memory:
    """Memory of one device at the fullest moment of a step, in bytes by use."""

    params: int
    """Parameters."""
    optimizer: int
    """State of the optimizer."""
    other_state: int
    """Other parts of the training state: the step, the seed and the model's own state."""
    batch: int
    """The device's part of a batch."""
    gradients: int
    """Gradients."""
    temporary: int
    """Other arrays that exist only while the step runs, mostly activations."""
    available: float
    """Memory that the device has for a program."""
    refused: bool = False
    """True if the compiler reported that the device's memory is too small."""

    @property
    def peak(self) -> int:
        """Sum of all uses, in bytes."""
        arguments = self.params + self.optimizer + self.other_state + self.batch
        return arguments + self.gradients + self.temporary

    @property
    def fits(self) -> bool:
        """True if the peak is within the device's memory and the compiler did not refuse the step."""
        return self.peak <= self.available and not self.refused


@dataclass(frozen=True)
class Exchange:
    """All collectives of one kind over the same mesh axes, in one step of one device."""

    kind: str
    """XLA's name of the collective, such as `all-reduce`."""
    axes: tuple[str, ...]
    """Mesh axes whose devices take part."""
    times: int
    """Number of such collectives in a step."""
    sent_bytes: int
    """Bytes that one device sends in all of them together."""
    crosses_groups: bool
    """True if it uses the network between hosts or TPU slices, and not only the fast links inside them."""


@dataclass(frozen=True)
class Plan:
    """The resources that one training step takes, and the time."""

    hardware: str
    """Hardware as `mw.parallel.hardware()` would print it there."""
    num_devices: int
    """Number of devices."""
    mesh: Mapping[str, int]
    """Size of each mesh axis."""
    settings: Mapping[str, object]
    """Settings of the experiment that decide the costs: batch size, microbatches, remat, dtype."""
    compiled: bool
    """True if read from the compiled program; False if estimated from the traced step."""
    num_params: int
    """Number of parameters, over all devices."""
    memory: Memory
    """Memory of one device."""
    exchanges: tuple[Exchange, ...]
    """Collectives of one step, the largest traffic first."""
    model_flops: float
    """FLOPs of a step over all devices, without recomputation."""
    hardware_flops: float
    """FLOPs of a step over all devices, with recomputation."""
    time: StepTime
    """Time of one step."""
    mfu: float | None
    """Model FLOPs utilisation: model FLOPs per second over the devices' peak.

    None if the peak is not known.
    """
    assumptions: str
    """Source of the device speeds that the times rest on."""
    checkpoint: CheckpointCost
    """Cost of one checkpoint."""
    notes: tuple[str, ...]
    """Remarks for the reader, such as work that was not counted, and why the step was not compiled."""
    pipeline: Ring | OneForwardOneBackward | None = None
    """The schedule of the stages; None without the axis `pipeline`."""
    planning_seconds: float = 0.0
    """Seconds that planning took."""
    planning_bytes: int = 0
    """Most memory in bytes that the planning process and its child processes used."""
