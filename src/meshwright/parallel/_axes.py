"""The standard mesh axes, a row each: what an axis splits, and what a program must call for it.

Layouts, the rules that split the state, the check for axes that repeat work, errors, the search of `plan` and
the help of commands ask this table. A new axis is a row, and the code of its own mechanism.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum

PIPELINE = "pipeline"
DATA = "data"
FSDP = "fsdp"
EXPERT = "expert"
SEQUENCE = "sequence"
TENSOR = "tensor"
EXAMPLE = f"{DATA}=-1,{FSDP}=4,{TENSOR}=2"
"""A mesh, for errors."""
SPLITTING_STATE = f"a mesh that splits the state further, such as {FSDP}=-1"
"""The remedy where memory does not suffice, for errors."""


class Use(Enum):
    """The split of batches, or of the state, by an axis."""

    NEVER = "no"
    PURPOSE = "yes: an axis that splits any is no idle one"
    BESIDES = "yes, so that devices repeat nothing, but the axis is there for something else"
    CHOICE = "as BESIDES, and a plan also tries without"


class Exchange(Enum):
    """The overlap of computing with exchanges between devices along an axis."""

    OF_BATCH = "it does if the axis splits the batch: gradients and weights are sent beside the products"
    RING = "it does, but for all-to-alls, whose results the next product needs"
    WAITED_FOR = "it does not: a stage waits for what it is sent"


@dataclass(frozen=True)
class Axis:
    """A standard axis: its use and its size in plans."""

    name: str
    splits: str = ""
    """The dimensions that it splits, for messages."""
    batch: Use = Use.PURPOSE
    state: Use = Use.PURPOSE
    call: str = ""
    """The call by which a model uses it; empty if it serves any model."""
    longest: int = 0
    """The largest size that a plan tries; 0 if the axis gets the devices that others leave."""
    is_fast: bool = False
    """True if it stays among devices with fast links."""
    exchange: Exchange = Exchange.OF_BATCH

    def hides(self, kind: str, *, splits_batch: bool) -> bool:
        """Return whether computing goes on during a kind of collective along the axis."""
        if self.exchange is Exchange.RING:
            return kind != "all-to-all"
        return splits_batch and self.exchange is Exchange.OF_BATCH


# In the order of the devices: what is sent least first, as those of other hosts differ along it.
AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis(
            PIPELINE, "layers", Use.BESIDES, call="mw.nn.layers", longest=32, exchange=Exchange.WAITED_FOR
        ),
        Axis(DATA, "examples", state=Use.NEVER),
        Axis(FSDP, "examples and the state"),
        Axis(EXPERT, "examples and experts", Use.CHOICE, call="mw.nn.moe", longest=256),
        Axis(
            SEQUENCE, "rows along their length", Use.NEVER, Use.BESIDES, "mw.nn.attention", 64,
            exchange=Exchange.RING,
        ),
        Axis(TENSOR, "heads and features", Use.NEVER, longest=16, is_fast=True),
    )
}  # fmt: skip
"""The standard axes. A rule may name one that a mesh lacks: it splits nothing there, so that the same rules
serve every mesh. Any other axis name that the mesh lacks is an error."""


def axis_named(name: str) -> Axis:
    """Return the row of an axis. A user's own axis may split anything."""
    return AXES.get(name) or Axis(name)


def batch_axes(sizes: Container[str]) -> tuple[str, ...]:
    """Return those of some axes that split a batch by default, in the order of the table."""
    return tuple(name for name, axis in AXES.items() if axis.batch is not Use.NEVER and name in sizes)


def plain_axes() -> tuple[str, ...]:
    """Return the axes that only split examples, and arrays by size: any program can use them."""
    return tuple(name for name, axis in AXES.items() if axis.batch is Use.PURPOSE)


def num_stages(sizes: Mapping[str, int]) -> int:
    """Return the number of stages of pipelines on a mesh of these sizes."""
    return sizes.get(PIPELINE, 1)


def elsewhere(axis: str) -> str:
    """Return the advice to do without an axis, for an error."""
    return f"give the devices of the axis {axis!r} to another axis, such as {FSDP}"


def axes_help() -> str:
    """Return a line for each axis, for the help of commands.

    Example:
      >>> print(mw.parallel._internal.axes_help().splitlines()[1])
      data      splits examples
    """
    rows = [f"{name:9} splits {axis.splits}" for name, axis in AXES.items()]
    calls = (f": the model calls {axis.call}" if axis.call else "" for axis in AXES.values())
    return "\n".join(map("".join, zip(rows, calls, strict=True)))
