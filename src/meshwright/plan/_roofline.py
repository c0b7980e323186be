"""The time of a step, at best: its slowest resource, and the network time that computing does not hide.

A roofline (Williams et al., CACM 52(4), 2009): a matrix product takes its FLOPs at the device's rate or its
bytes at the memory's rate, whichever is longer. The rest of the step is assumed to be bound by memory.
Collectives over the axes that split the batch move parameters and gradients, and XLA runs them while it
computes. So it does with keys and values that go round a ring. Products wait for all other collectives.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.parallel._internal import axis_named
from meshwright.plan._chips import Chip, Tpu
from meshwright.plan._estimate._traced import Work
from meshwright.program._internal import Collective, peak_flops


@dataclass(frozen=True)
class _Shares:
    """What a kind of chip reaches in a whole step."""

    products: float
    """Of the data sheet's peak, in large matrix products."""
    attention: float
    """Of that speed, in fused attention kernels."""
    overlap: float
    """Of the traffic over the batch's axes that hides behind computing. The rest waits: the first and last
    gathers, and what takes cores from products."""
    memory_overlap: float
    """Of the shorter of products and other operations that hides behind the longer."""


# Fixed on the half `fit` of benchmarks/published_runs.py: those of H100 on six runs by least squares
# (benchmarks/fit_rates.py), those of TPUs on two runs on v5e, one each on v5p and v6e. What all TPUs have in
# common is plausible, and a coarse grid on the same runs did not contradict it. Other chips were not
# compared with any run: v4 takes the shares of v5p, and all GPUs those of H100. A GPU runs one kernel after
# the other, so that no memory time hides; XLA for TPUs fuses other operations into products.
_GPU = _Shares(products=0.625, attention=0.4, overlap=0.5, memory_overlap=0.0)
_TPUS = {
    name: _Shares(products, attention=0.6, overlap=0.9, memory_overlap=0.5)
    for name, products in {"v4": 0.75, "v5e": 0.8, "v5p": 0.75, "v6e": 0.65}.items()
}
_MEMORY_SHARE, _LINK_SHARE = 0.8, 0.8
# Delays of one hop: over NVLink, over InfiniBand. They are assumed, not fixed on runs. Collectives of TPUs
# run along each axis of the torus: a slice of 256 has 32 hops of a microsecond, not 256.
_GPU_MEMBER_SECONDS, _TPU_MEMBER_SECONDS, _GROUP_SECONDS = 1e-6, 1e-7, 5e-6


@dataclass(frozen=True)
class Rates:
    """Speeds of one device, for the estimate of times.

    Example:
      >>> speeds = {"memory": 2.7e12, "link": 3.6e11, "network": 4e10}
      >>> rates = mw.plan._internal.Rates({"bfloat16": 6e14}, **speeds, source="mine")
      >>> rates.flops["bfloat16"]
      600000000000000.0
    """

    flops: Mapping[str, float]
    """FLOPs per second, by dtype of the factors of a product."""
    memory: float
    """Bytes per second read and written."""
    link: float
    """Bytes per second sent over fast links."""
    network: float
    """Bytes per second sent over the network."""
    source: str
    """Source of these figures, for people."""
    product_seconds: float = 0.0
    """Fixed seconds of each matrix product."""
    member_seconds: float = 0.0
    """Fixed seconds of each collective, for each device that takes part in a group with fast links."""
    group_seconds: float = 0.0
    """Fixed seconds of each collective between such groups, for each group."""
    attention: float | None = None
    """Speed of a fused attention kernel, as a share of that of matrix products.

    None: there is no such kernel. Then scores go through memory, and its products run as all others do.
    """
    overlap: float = 1.0
    """Share of the batch axes' traffic that hides behind the computing beside it, from 0 to 1."""
    memory_overlap: float = 0.0
    """Share of the shorter of product and memory time that hides behind the longer, from 0 to 1."""
    host: float = math.inf
    """Bytes per second that a device and the host's memory exchange, in one direction at a time."""


@dataclass(frozen=True)
class StepTime:
    """Parts of a step's time in seconds. Network time is partly hidden behind the others."""

    compute: float
    """Seconds of matrix products."""
    memory: float
    """Seconds of all other reads and writes of memory."""
    network: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    """Seconds of collectives, by the mesh axes that they run over."""
    exposed: float = 0.0
    """Seconds of collectives that no computing hides."""
    hidden_memory: float = 0.0
    """Seconds in which products and other memory traffic run at once."""
    host: float = 0.0
    """Seconds of copies between the memories of the device and of the host that no computing hides."""

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.computing + self.exposed + self.host

    @property
    def computing(self) -> float:
        """Seconds of products and memory, without what one hides of the other."""
        return self.compute + self.memory - self.hidden_memory


def published_rates(chip: Chip) -> Rates:
    """Return the speeds to expect of a chip, from its data sheet.

    Unproven: never run beside a step on the GPUs and TPUs whose speeds it returns.

    Example:
      >>> from dataclasses import replace
      >>> rates = mw.plan.published_rates(mw.plan.hardware_named("h100:8").chip)
      >>> slow_attention = replace(rates, attention=0.35)

    Args:
      chip: An accelerator, such as `hardware_named("h100:8").chip`.
    """
    dtypes = ("bfloat16", "float16", "float32")
    peaks = {dtype: peak_flops(chip.device_kind, dtype) for dtype in dtypes}
    is_tpu = isinstance(chip.target, Tpu)
    shares = _TPUS[chip.name] if is_tpu else _GPU
    return Rates(
        flops={dtype: shares.products * peak for dtype, peak in peaks.items() if peak},
        memory=_MEMORY_SHARE * chip.memory_bandwidth,
        link=_LINK_SHARE * chip.link_bandwidth,
        network=_LINK_SHARE * chip.network_bandwidth,
        source=f"{shares.products:.0%} of its peak FLOP/s, {shares.attention * shares.products:.0%} in fused "
        f"attention, {_MEMORY_SHARE:.0%} of its memory's bandwidth and {_LINK_SHARE:.0%} of its links' and "
        f"network's, as on the data sheet of {chip.device_kind}",
        member_seconds=_TPU_MEMBER_SECONDS if is_tpu else _GPU_MEMBER_SECONDS,
        group_seconds=_GROUP_SECONDS,
        attention=shares.attention,
        overlap=shares.overlap,
        memory_overlap=shares.memory_overlap,
        host=_LINK_SHARE * chip.host_bandwidth,
    )


def step_time(
    products: Iterable[Work],
    other_nbytes: float,
    collectives: Sequence[Collective],
    rates: Rates,
    *,
    inside: Mapping[str, int],
    over: Mapping[str, int],
    batch_axes: frozenset[str],
    kept_on_host: int = 0,
    state_on_host: int = 0,
) -> StepTime:
    """Return the time of a step."""
    compute = sum(product.times * _seconds(product, rates) for product in products)
    memory = other_nbytes / rates.memory
    hidden_memory = rates.memory_overlap * min(compute, memory)
    network: dict[tuple[str, ...], float] = defaultdict(float)
    for collective in collectives:
        network[collective.axes] += collective.times * _network_seconds(collective, rates, inside, over)
    behind = sum(
        x.times * _network_seconds(x, rates, inside, over)
        for x in collectives
        if all(axis_named(axis).hides(x.kind, splits_batch=axis in batch_axes) for axis in x.axes)
    )
    computing = compute + memory - hidden_memory
    hidden = rates.overlap * min(computing, behind)
    host = state_on_host / rates.host + max(0.0, kept_on_host / rates.host - rates.overlap * computing)
    return StepTime(compute, memory, dict(network), sum(network.values()) - hidden, hidden_memory, host)


def _seconds(work: Work, rates: Rates) -> float:
    """Return the seconds of a product.

    If the rate of its dtype is unknown, the slowest known rate is assumed.
    """
    rate = rates.flops.get(work.dtype) or min(rates.flops.values())
    if work.is_attention and rates.attention is not None:
        return work.flops / (rates.attention * rate)
    return rates.product_seconds + max(work.flops / rate, work.nbytes / rates.memory)


def _network_seconds(
    collective: Collective, rates: Rates, inside: Mapping[str, int], over: Mapping[str, int]
) -> float:
    """Return the seconds of a collective.

    Devices of a group form a ring. Between groups, each device carries its share of its group's traffic. A
    permutation is one hop, not one for each device.
    """
    members = math.prod(inside.get(axis, 1) for axis in collective.axes)
    groups = math.prod(over.get(axis, 1) for axis in collective.axes)
    n, ring = collective.group_size, collective.sent_nbytes / rates.link
    hops = (1, 1) if collective.kind == "collective-permute" else (members, groups)
    meeting = hops[0] * rates.member_seconds + (hops[1] * rates.group_seconds if groups > 1 else 0.0)
    if groups == 1:
        return meeting + ring
    between = collective.sent_nbytes * n / max(n - 1, 1) * (groups - 1) / groups / members
    return meeting + max(ring if members > 1 else 0.0, between / rates.network)
