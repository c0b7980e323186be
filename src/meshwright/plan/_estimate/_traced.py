"""The costs of a traced step, for one device: its matrix products, and the estimate as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from meshwright.hlo import Collective
from meshwright.plan._estimate._liveness import GATHERED, GRADIENTS, KEPT, WORKSPACE, Liveness
from meshwright.plan._estimate._propagation import Propagation
from meshwright.plan._estimate._traffic import Traffic, exchange_of, is_partly_manual
from meshwright.program import Operation, Program, product_flops, program_of, walk
from meshwright.sharding import Layout
from meshwright.tree import PyTree, leaf_names


@dataclass(frozen=True)
class Work:
    """A matrix product, on one device."""

    flops: float
    nbytes: float
    """What it reads and writes."""
    dtype: str
    times: int
    """How often a step does it."""


def works(program: Program, specs: Propagation, traffic: Traffic, times: int = 1) -> list[Work]:
    """Return the products of a program, its bodies included."""
    found = []
    for operation in program.operations:
        for body in operation.bodies:
            found += works(body, specs, traffic, times * operation.turns)
        product = product_flops(operation)
        if product:
            found.append(_work(operation, *product, specs, traffic, times))
    return found


def _work(
    operation: Operation, flops: int, dtype: str, specs: Propagation, traffic: Traffic, times: int
) -> Work:
    """Each device does an equal part; what it reads of a gathered operand is all that was gathered."""
    axes = traffic.shares.get(operation, {})
    copies = dict(traffic.copies.get(operation, []))
    nbytes = sum(copies.get(value, specs.nbytes(value)) for value in operation.values)
    return Work(flops / specs.ways(axes), nbytes, dtype, times)


@dataclass(frozen=True)
class TracedMemory:
    """Bytes of one device at the step's fullest moment, by what they are for."""

    arguments: int
    """The state and the batch. The new state takes the place of the old one."""
    gradients: int
    kept: int
    """What the forward pass keeps for the backward pass."""
    gathered: int
    """Weights, and what else is split otherwise than an operation needs it."""
    workspace: int
    """All else."""

    @property
    def temporary(self) -> int:
        """What is there besides the arguments."""
        return self.gradients + self.kept + self.gathered + self.workspace

    @property
    def peak(self) -> int:
        return self.arguments + self.temporary


@dataclass(frozen=True)
class TracedCosts:
    """What one step takes of each device."""

    collectives: Sequence[Collective]
    """Whether they cross processes is not known of an abstract mesh, and said to be not so."""
    products: Sequence[Work]
    """One for each matrix product of the program."""
    other_nbytes: int
    """What all else reads and writes, after fusion."""
    memory: TracedMemory
    not_understood: tuple[str, ...]
    """Primitives whose dimensions are not known to go together: what they need is taken to be whole."""


def traced_costs(jaxpr: Any, state: PyTree, layout: Layout) -> TracedCosts:
    """Return what a step takes of each device, compiling nothing.

    Args:
      jaxpr: of a step, `step.trace(state, batch).jaxpr`.
      state: what it was traced for: arrays or structs with shardings.
      layout: of which the mesh, which may be abstract, and the split of the batch are used.
    """
    program = program_of(jaxpr, leaf_names(state))
    specs = _placed(program, state, layout)
    specs.run(program)
    traffic = Traffic(specs)
    traffic.run(program)
    liveness = Liveness(specs, traffic)
    fullest = liveness.peak(program, [])
    arguments = sum(specs.nbytes(value) for value in program.inputs)
    uses = (fullest[use] for use in (GRADIENTS, KEPT, GATHERED, WORKSPACE))
    return TracedCosts(
        collectives=traffic.collectives,
        products=works(program, specs, traffic),
        other_nbytes=liveness.passed_nbytes,
        memory=TracedMemory(arguments, *uses),
        not_understood=_not_understood(program, specs),
    )


def _placed(program: Program, state: PyTree, layout: Layout) -> Propagation:
    """Fix where the state is, before and after, the batch, and the metrics, which are whole."""
    specs = Propagation(dict(layout.mesh.shape))
    held = [x.sharding.spec for x in jax.tree.leaves(state)]
    batch = [layout.batch_sharding.spec] * (len(program.inputs) - len(held))
    metrics = [PartitionSpec()] * (len(program.outputs) - len(held))
    for values, places in ((program.inputs, held + batch), (program.outputs, held + metrics)):
        for value, spec in zip(values, places, strict=True):
            specs.fix(value, spec)
    return specs


def _not_understood(program: Program, specs: Propagation) -> tuple[str, ...]:
    names = {x.kind for x in walk(program) if not x.bodies and not exchange_of(x) and not specs.rule(x).known}
    return tuple(sorted(names.union(x.kind for x in walk(program) if is_partly_manual(x, specs.sizes))))
