"""How long a step takes at best: what bounds it, and what of the network does not hide behind computing.

A roofline (Williams et al., CACM 52(4), 2009): a matrix product takes as long as its operations at the
device's rate or its bytes at the memory's, whichever is longer; the rest of the step is taken to be bound by
memory. Collectives over the axes that split the batch move parameters and gradients, which XLA does while it
computes; the others stand between products that wait for them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.hlo import Collective
from meshwright.plan._chips import Chip
from meshwright.plan._estimate import Work
from meshwright.program import peak_flops

COMPUTE_SHARE, MEMORY_SHARE, LINK_SHARE = 0.7, 0.8, 0.8
"""Of the data sheets' figures, what good programs get."""


@dataclass(frozen=True)
class Rates:
    """What a device gets done in a second."""

    flops: Mapping[str, float]
    """By dtype of what is multiplied."""
    memory: float
    """Bytes."""
    link: float
    """Bytes sent to those that fast links join it with."""
    network: float
    """Bytes sent to others."""
    source: str
    """Where this is from, for people."""
    product_seconds: float = 0.0
    """What a matrix product takes however small it is."""
    member_seconds: float = 0.0
    """What a collective takes for each device that takes part, however small it is."""


@dataclass(frozen=True)
class StepTime:
    """The parts of a step's time, in seconds; the whole is less than their sum where they overlap."""

    compute: float
    """Matrix products."""
    memory: float
    """What else passes through memory."""
    network: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    """Collectives, by the mesh axes that they are over."""
    exposed: float = 0.0
    """Of the network, what nothing is computed behind."""

    @property
    def seconds(self) -> float:
        """The step."""
        return self.compute + self.memory + self.exposed


def published_rates(chip: Chip) -> Rates:
    """Return what to expect of a chip by its data sheet."""
    dtypes = ("bfloat16", "float16", "float32")
    peaks = {dtype: peak_flops(chip.device_kind, dtype) for dtype in dtypes}
    return Rates(
        flops={dtype: COMPUTE_SHARE * peak for dtype, peak in peaks.items() if peak},
        memory=MEMORY_SHARE * chip.memory_bandwidth,
        link=LINK_SHARE * chip.link_bandwidth,
        network=LINK_SHARE * chip.network_bandwidth,
        source=f"{COMPUTE_SHARE:.0%} of its peak FLOP/s, {MEMORY_SHARE:.0%} of its memory's bandwidth and "
        f"{LINK_SHARE:.0%} of its links' and network's, as on the data sheet of {chip.device_kind}",
    )


def step_time(
    products: Iterable[Work],
    other_nbytes: float,
    collectives: Sequence[Collective],
    rates: Rates,
    *,
    inside: Mapping[str, int],
    over: Mapping[str, int],
    hidden_axes: frozenset[str],
) -> StepTime:
    """Return how long a step takes.

    Args:
      other_nbytes: what is read and written beside the products.
      inside: the sizes of the mesh's axes within groups of devices with fast links among them.
      over: and over those groups.
      hidden_axes: the axes that split the batch; see above.
    """
    compute = sum(each.times * _seconds(each, rates) for each in products)
    memory = other_nbytes / rates.memory
    network: dict[tuple[str, ...], float] = defaultdict(float)
    for each in collectives:
        network[each.axes] += each.times * _network_seconds(each, rates, inside, over)
    behind = sum(seconds for axes, seconds in network.items() if hidden_axes.issuperset(axes))
    return StepTime(compute, memory, dict(network), sum(network.values()) - min(compute + memory, behind))


def _seconds(work: Work, rates: Rates) -> float:
    """A dtype of which no rate is known is taken to be multiplied at the slowest that is."""
    rate = rates.flops.get(work.dtype) or min(rates.flops.values())
    return rates.product_seconds + max(work.flops / rate, work.nbytes / rates.memory)


def _network_seconds(
    collective: Collective, rates: Rates, inside: Mapping[str, int], over: Mapping[str, int]
) -> float:
    """Inside a group a ring; between groups, each device carries its share of what its group needs."""
    here = math.prod(inside.get(axis, 1) for axis in collective.axes)
    groups = math.prod(over.get(axis, 1) for axis in collective.axes)
    n, ring = collective.group_size, collective.sent_nbytes / rates.link
    meeting = n * rates.member_seconds
    if groups == 1:
        return meeting + ring
    between = collective.sent_nbytes * n / max(n - 1, 1) * (groups - 1) / groups / here
    return meeting + max(ring if here > 1 else 0.0, between / rates.network)
