"""The memory of a program at its fullest moment, by use.

A value occupies memory from the operation that makes it to the last that reads it. A loop adds the peak of
its body.
"""

from collections import Counter, defaultdict

from meshwright.plan._estimate._buffers import Buffers, is_whole
from meshwright.plan._estimate._propagation import Propagation
from meshwright.plan._estimate._schedule import scheduled
from meshwright.plan._estimate._traffic import Traffic, is_product
from meshwright.program import Memory, Operation, Program, Value, known_of

GRADIENTS, KEPT, GATHERED, WORKSPACE = "gradients", "kept", "gathered", "workspace"


class Timeline:
    """Bytes in memory over time, by use."""

    def __init__(self) -> None:
        self._changes: dict[int, Counter[str]] = defaultdict(Counter)

    def add(self, use: str, nbytes: int, start: int, end: int, *, in_place: bool = False) -> None:
        """Add a value that lives from before operation `start` to after `end`.

        From after `start` if in place.
        """
        self._changes[2 * start + in_place][use] += nbytes
        self._changes[2 * end + 1][use] -= nbytes

    def before(self, i: int) -> Counter[str]:
        """Return the changes just before the i-th operation."""
        return self._changes[2 * i]

    def after(self, i: int) -> Counter[str]:
        """Return the changes just after the i-th operation."""
        return self._changes[2 * i + 1]


class Liveness:
    """The memory of programs whose values are split over a mesh."""

    def __init__(self, specs: Propagation, traffic: Traffic, *, ragged_kernel: bool = False) -> None:
        self._specs, self._traffic, self._ragged_kernel = specs, traffic, ragged_kernel
        self.passed_nbytes = 0
        """Total bytes read and written by operations that are neither matrix products nor loops.

        Those of attention, which a fused kernel keeps on the chip, are in `attention_nbytes`.
        """
        self.attention_nbytes = 0

    def peak(self, program: Program, kept: list[Value], times: int = 1) -> Counter[str]:
        """Return the bytes at the fullest moment, by use, without those of the inputs.

        Args:
          program: The program.
          kept: The results that get memory of their own.
          times: Number of runs of the program, for `passed_nbytes`.
        """
        program = scheduled(program)
        copied = [x for of in program.operations for x, _ in self._traffic.copies.get(of, [])]
        buffers = Buffers(program, kept, copied)
        timeline = Timeline()
        self._add_values(timeline, program, buffers, kept)
        self._add_copies(timeline, program)
        if not self._ragged_kernel:
            self._add_masked(timeline, program)
        self._add_sums(timeline, program)
        for operation in program.operations:
            passed = times * self._passed(operation, buffers)
            self.attention_nbytes += passed * operation.is_fused_attention
            self.passed_nbytes += passed * (not operation.is_fused_attention)
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
        """Return the peak of an operation's bodies, without values that are written into stacked results."""
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
        """Return whether a result reuses the memory of a value in `ending`, which nothing reads later."""
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
        """Add gathered operands, which exist from their first use to their last."""
        uses: dict[tuple[Value, int], list[int]] = defaultdict(list)
        for i, operation in enumerate(program.operations):
            for copy in self._traffic.copies.get(operation, []):
                uses[copy].append(i)
        for (_, nbytes), found in uses.items():
            timeline.add(GATHERED, nbytes, found[0], found[-1])

    def _add_masked(self, timeline: Timeline, program: Program) -> None:
        """Add the rows of ragged products, once for each expert, with zeros for the rows of the others.

        A product with the experts also needs a copy of them in another order. The gradient of the experts
        needs both of its operands so.
        """
        uses: dict[tuple[Value, bool, bool], list[int]] = defaultdict(list)
        ragged = {i: of for i, of in enumerate(program.operations) if of.kind == "ragged_dot_general"}
        for i, operation in ragged.items():
            rows, other = operation.inputs[:2]
            has_groups = operation.eqn.params["ragged_dot_dimension_numbers"].rhs_group_dimensions
            second = (rows, True) if has_groups else (other, False)
            for value, is_reordered in ((rows, False), second):
                uses[value, is_reordered, operation.is_recomputed].append(i)
        for (value, *_), found in uses.items():
            num_experts = ragged[found[0]].inputs[2].shape[-1]
            timeline.add(WORKSPACE, num_experts * self._specs.nbytes(value), found[0], found[-1])

    def _add_sums(self, timeline: Timeline, program: Program) -> None:
        """Add gradients before they are summed and scattered.

        They wait for each other: XLA sends them together.
        """
        for i, operation in enumerate(program.operations):
            for nbytes in self._traffic.sums.get(operation, []):
                timeline.add(GRADIENTS, nbytes, i, len(program.operations))

    def _passed(self, operation: Operation, buffers: Buffers) -> int:
        made = buffers.makes(operation)
        if operation.bodies or is_product(operation) or not made:
            return 0
        return sum(map(self._specs.nbytes, (*made, *buffers.sources(operation))))


def _use(program: Program, start: int, end: int) -> str:
    """Return the use of a value.

    The forward pass makes values that the backward pass reads: these are kept. Values that the backward pass
    leaves are gradients. All others are workspace.
    """
    last = program.operations[min(end, len(program.operations) - 1)]
    begins_backward = program.operations[start].is_backward
    if begins_backward == last.is_backward:
        return WORKSPACE
    return GRADIENTS if begins_backward else KEPT
