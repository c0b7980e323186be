"""The costs of a traced step for one device: its matrix products, collectives and memory."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import PartitionSpec

from meshwright.base._internal import PyTree, leaf_names
from meshwright.parallel._internal import Layout
from meshwright.plan._estimate._liveness import ACTIVATIONS, GATHERED, GRADIENTS, WORKSPACE, Liveness, Masked
from meshwright.plan._estimate._propagation import Propagation
from meshwright.plan._estimate._traffic import Traffic, exchange_of
from meshwright.program._internal import (
    Collective,
    Flops,
    Operation,
    Program,
    dtype_of,
    program_flops,
    program_of,
    walk,
)


@dataclass(frozen=True)
class Work:
    """A matrix product, as one device does it."""

    flops: float
    """FLOPs of one execution."""
    nbytes: float
    """Bytes that one execution reads and writes."""
    dtype: str
    """Dtype of the factors."""
    times: int
    """Number of executions in a step."""
    is_attention: bool = False
    """True if a fused attention kernel can do it."""


def products_of(
    program: Program, specs: Propagation, traffic: Traffic, *, ragged_kernel: bool, times: int = 1
) -> list[Work]:
    """Return the products of a program, including those in bodies of loops."""
    products = []
    for operation in program.operations:
        for body in operation.bodies:
            turns = times * operation.turns
            products += products_of(body, specs, traffic, ragged_kernel=ragged_kernel, times=turns)
        if flops := operation.work:
            work = _work(operation, sum(flops), specs, traffic, times)
            if ragged_kernel:
                work = replace(work, flops=work.flops * operation.used_share)
            elif operation.num_groups:
                work = _masked(work, operation, specs)
            products.append(work)
    return products


def _masked(work: Work, operation: Operation, specs: Propagation) -> Work:
    """Return the work of a ragged product without a kernel: all rows with each expert."""
    written_nbytes = 2 * operation.num_groups * specs.nbytes(operation.inputs[0])
    return replace(work, flops=work.flops * operation.num_groups, nbytes=work.nbytes + written_nbytes)


def _work(operation: Operation, flops: int, specs: Propagation, traffic: Traffic, times: int) -> Work:
    """Return one device's part of a product; gathered operands are read whole."""
    axes = traffic.shares.get(operation, {})
    copies = dict(traffic.copies.get(operation, []))
    nbytes = sum(copies.get(value, specs.nbytes(value)) for value in operation.values)
    is_attention = operation.is_fused_attention or operation.primitive.product == "attention"
    return Work(flops / specs.ways(axes), nbytes, dtype_of(operation.eqn), times, is_attention)


@dataclass(frozen=True)
class TracedMemory:
    """Memory of one device at the fullest moment of a step, in bytes by use."""

    arguments: int
    """The state and the batch. The new state replaces the old one in the same memory."""
    gradients: int
    """Gradients."""
    activations: int
    """Activations that the forward pass keeps for the backward pass."""
    gathered: int
    """Gathered copies of weights and other operands that an operation needs split in another way."""
    workspace: int
    """All other values."""

    @property
    def temporary(self) -> int:
        """Bytes besides the arguments."""
        return self.gradients + self.activations + self.gathered + self.workspace

    @property
    def peak(self) -> int:
        """Bytes of all uses together."""
        return self.arguments + self.temporary


@dataclass(frozen=True)
class TracedCosts:
    """Costs of one step for each device."""

    flops: Flops
    """FLOPs of all devices together."""
    collectives: Sequence[Collective]
    """Collectives of the step. An abstract mesh has no processes, so none is marked as crossing them."""
    products: Sequence[Work]
    """Matrix products of the step, one entry for each in the program."""
    other_nbytes: int
    """Bytes that all other operations read and write, after fusion."""
    attention_nbytes: int
    """Bytes that attention reads and writes besides its products, where no fused kernel computes it."""
    memory: TracedMemory
    """Memory of the device."""
    host_nbytes: int
    """Bytes that are copied between the device and the host's memory, both ways together."""
    num_masked: int
    """The most experts by which a ragged product multiplies each row without a kernel; otherwise 1."""
    most_nbytes: int
    """Bytes at the peak if rows of ragged products that XLA makes again, to save memory, are kept instead."""
    not_understood: tuple[str, ...]
    """Primitives without a rule for their dimensions; each device is assumed to do all of their work."""


def traced_costs(
    jaxpr: Any,
    state: PyTree,
    layout: Layout,
    *,
    ragged_kernel: bool = False,
    ample_nbytes: float = math.inf,
) -> TracedCosts:
    """Return the costs of a step for each device, without compiling it."""
    program = program_of(jaxpr, leaf_names(state))
    specs = _placed(program, state, layout)
    specs.run(program)
    traffic = Traffic(specs)
    traffic.run(program)
    arguments = sum(specs.nbytes(value) for value in program.inputs)
    liveness = Liveness(specs, traffic, Masked.NOT_MADE if ragged_kernel else Masked.ONCE)
    fullest = liveness.peak(program, [])
    most, num_masked = arguments + fullest.total(), 0 if ragged_kernel else _num_masked(program)
    if num_masked and most > ample_nbytes:
        least = Liveness(specs, traffic, Masked.AT_EACH_USE).peak(program, [])
        fullest = least + Counter({WORKSPACE: max(0, int(ample_nbytes) - arguments - least.total())})
    uses = (fullest[use] for use in (GRADIENTS, ACTIVATIONS, GATHERED, WORKSPACE))
    return TracedCosts(
        flops=program_flops(program),
        collectives=traffic.collectives,
        products=products_of(program, specs, traffic, ragged_kernel=ragged_kernel),
        num_masked=max(num_masked, 1),
        other_nbytes=liveness.passed_nbytes,
        attention_nbytes=liveness.attention_nbytes,
        memory=TracedMemory(arguments, *uses),
        most_nbytes=most,
        host_nbytes=_copied_to_host(program, specs),
        not_understood=_not_understood(program, specs),
    )


def _copied_to_host(program: Program, specs: Propagation) -> int:
    """Return the bytes of all copies between the memories of the device and of the host."""
    total = 0
    for operation in program.operations:
        total += operation.turns * sum(_copied_to_host(body, specs) for body in operation.bodies)
        if operation.is_copy_to_host_or_back:
            total += sum(map(specs.nbytes, operation.values))
    return total


def _num_masked(program: Program) -> int:
    """Return the most experts of a ragged product; 0 if there is none."""
    return max((operation.num_groups for operation in walk(program)), default=0)


def _placed(program: Program, state: PyTree, layout: Layout) -> Propagation:
    """Return a propagation in which state, batch and metrics have fixed specs; metrics are not split."""
    specs = Propagation(dict(layout.mesh.shape))
    state_specs = [x.sharding.spec for x in jax.tree.leaves(state)]
    batch = [layout.batch_sharding.spec] * (len(program.inputs) - len(state_specs))
    metrics = [PartitionSpec()] * (len(program.outputs) - len(state_specs))
    for values, fixed in ((program.inputs, state_specs + batch), (program.outputs, state_specs + metrics)):
        for value, spec in zip(values, fixed, strict=True):
            specs.fix(value, spec)
    return specs


def _not_understood(program: Program, specs: Propagation) -> tuple[str, ...]:
    operations = (x for x in walk(program) if not x.bodies and not exchange_of(x))
    return tuple(sorted({x.kind for x in operations if not specs.rule(x).is_known}))
