"""How much memory a program takes at its fullest moment, by what it is for.

A value is there from the operation that makes it to the last that reads it. A loop adds its body's own peak.
"""

from collections import Counter, defaultdict

from meshwright.plan._estimate._buffers import Buffers, is_whole
from meshwright.plan._estimate._propagation import Propagation
from meshwright.plan._estimate._schedule import scheduled
from meshwright.plan._estimate._traffic import Traffic, is_product
from meshwright.program import Memory, Operation, Program, Value, known_of

GRADIENTS, KEPT, GATHERED, WORKSPACE = "gradients", "kept", "gathered", "workspace"


class Timeline:
    """What is in memory when, in bytes by use."""

    def __init__(self) -> None:
        self._changes: dict[int, Counter[str]] = defaultdict(Counter)

    def add(self, use: str, nbytes: int, start: int, end: int, *, in_place: bool = False) -> None:
        """Add what is there from before operation `start` to after `end`; from after `start` if in place."""
        self._changes[2 * start + in_place][use] += nbytes
        self._changes[2 * end + 1][use] -= nbytes

    def before(self, i: int) -> Counter[str]:
        """Return what comes before the i-th operation."""
        return self._changes[2 * i]

    def after(self, i: int) -> Counter[str]:
        """Return what comes, and what goes, after it."""
        return self._changes[2 * i + 1]


class Liveness:
    """The memory of programs whose values are split over a mesh."""

    def __init__(self, specs: Propagation, traffic: Traffic) -> None:
        self._specs, self._traffic = specs, traffic
        self.passed_nbytes = 0
        """Bytes read and written by what is neither a matrix product nor a loop, in all."""

    def peak(self, program: Program, kept: list[Value], times: int = 1) -> Counter[str]:
        """Return the bytes at the fullest moment, by use; without those of the inputs.

        Args:
          kept: the results that get memory of their own.
          times: how often the program runs, for `passed_nbytes`.
        """
        program = scheduled(program)
        copied = [x for of in program.operations for x, _ in self._traffic.copies.get(of, [])]
        buffers = Buffers(program, kept, copied)
        timeline = Timeline()
        self._add_values(timeline, program, buffers, kept)
        self._add_copies(timeline, program)
        self._add_sums(timeline, program)
        self.passed_nbytes += times * sum(self._passed(x, buffers) for x in program.operations)
        return self._fullest(timeline, program, times)

    def _fullest(self, timeline: Timeline, program: Program, times: int) -> Counter[str]:
        fullest, now = Counter[str](), Counter[str]()
        for i, operation in enumerate(program.operations):
            now.update(timeline.before(i))
            inside = self._inside(operation, times)
            if now.total() + inside.total() > fullest.total():
                fullest = now + inside
            now.update(timeline.after(i))
        return fullest

    def _inside(self, operation: Operation, times: int) -> Counter[str]:
        """Return what the bodies of an operation take; what they stack up is written where it stays."""
        stacked = {tie.source for tie in operation.leaving if tie.target_stacked}
        turns = times * operation.turns
        kept = [[x for x in body.outputs if x not in stacked] for body in operation.bodies]
        peaks = [self.peak(*of, turns) for of in zip(operation.bodies, kept, strict=True)]
        return max(peaks, key=Counter.total, default=Counter())

    def _add_values(self, timeline: Timeline, program: Program, buffers: Buffers, kept: list[Value]) -> None:
        last = buffers.last_reads(kept)
        ending: dict[int, list[Value]] = defaultdict(list)
        for i, operation in enumerate(program.operations):
            for value in buffers.makes(operation):
                end = last.get(value, i)
                in_place = self._takes_over(operation, value, buffers, ending[i])
                timeline.add(_use(program, i, end), self._specs.nbytes(value), i, end, in_place=in_place)
                ending[end].append(value)

    def _takes_over(self, operation: Operation, value: Value, buffers: Buffers, ending: list[Value]) -> bool:
        """Whether a result takes the memory of one of `ending`, which nothing reads after this operation."""
        if is_whole(operation) and not operation.bodies:
            return known_of(operation).memory is Memory.IN_PLACE
        if any(tie.target is value and tie.target_stacked for tie in operation.leaving):
            return False
        nbytes, replaceable = self._specs.nbytes(value), buffers.replaceable(operation)
        free = [x for x in ending if x in replaceable and self._specs.nbytes(x) == nbytes]
        if free:
            ending.remove(free[0])
        return bool(free)

    def _add_copies(self, timeline: Timeline, program: Program) -> None:
        """A gathered operand is there from its first use to its last."""
        uses: dict[tuple[Value, int], list[int]] = defaultdict(list)
        for i, operation in enumerate(program.operations):
            for copy in self._traffic.copies.get(operation, []):
                uses[copy].append(i)
        for (_, nbytes), found in uses.items():
            timeline.add(GATHERED, nbytes, found[0], found[-1])

    def _add_sums(self, timeline: Timeline, program: Program) -> None:
        """Gradients that are yet to be summed and scattered wait for each other: XLA sends them together."""
        for i, operation in enumerate(program.operations):
            for nbytes in self._traffic.sums.get(operation, []):
                timeline.add(GRADIENTS, nbytes, i, len(program.operations))

    def _passed(self, operation: Operation, buffers: Buffers) -> int:
        made = buffers.makes(operation)
        if operation.bodies or is_product(operation) or not made:
            return 0
        return sum(map(self._specs.nbytes, (*made, *buffers.sources(operation))))


def _use(program: Program, start: int, end: int) -> str:
    """What is made in the forward pass and read in the backward one is kept; what that leaves, gradients."""
    last = program.operations[min(end, len(program.operations) - 1)]
    is_backward = _is_backward(program.operations[start])
    if is_backward == _is_backward(last):
        return WORKSPACE
    return GRADIENTS if is_backward else KEPT


def _is_backward(operation: Operation) -> bool:
    return "transpose(" in str(operation.eqn.source_info.name_stack)
