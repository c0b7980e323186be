"""The memory of a program at its fullest moment, by use.

A value occupies memory from the operation that makes it to the last that reads it. A loop adds the peak of
its body.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from meshwright.plan._estimate._buffers import Buffers, is_whole
from meshwright.plan._estimate._propagation import Propagation
from meshwright.plan._estimate._schedule import scheduled
from meshwright.plan._estimate._traffic import Traffic, is_product
from meshwright.program._internal import Memory, Operation, Program, Value

GRADIENTS, ACTIVATIONS, GATHERED, WORKSPACE = "gradients", "activations", "gathered", "workspace"
Copies = Mapping[Operation, Sequence[tuple[Value, int]]]
"""For each operation, its moved or gathered operands, and their bytes after the move."""
_NOTHING = Counter[str]()


class Masked(Enum):
    """How often XLA makes the rows of ragged products, once for each expert."""

    NOT_MADE = "never: there is a kernel"
    ONCE = "once, and keeps them for the gradient of the experts"
    AT_EACH_USE = "at each use, to save memory"


class Timeline:
    """Bytes in memory over time, by use."""

    def __init__(self) -> None:
        self._changes: dict[int, list[tuple[str, int]]] = defaultdict(list)

    def add(self, use: str, nbytes: int, start: int, end: int, *, in_place: bool = False) -> None:
        """Add a value that lives from before operation `start` to after `end`.

        From after `start` if in place.
        """
        self._changes[2 * start + in_place].append((use, nbytes))
        self._changes[2 * end + 1].append((use, -nbytes))

    def start(self, usage: Counter[str], i: int) -> None:
        """Change the bytes in memory as just before the i-th operation."""
        self._change(usage, 2 * i)

    def end(self, usage: Counter[str], i: int) -> None:
        """Change the bytes in memory as just after the i-th operation."""
        self._change(usage, 2 * i + 1)

    def _change(self, usage: Counter[str], moment: int) -> None:
        for use, nbytes in self._changes.get(moment, ()):
            usage[use] += nbytes


class Liveness:
    """The memory of programs whose values are split over a mesh."""

    def __init__(self, specs: Propagation, traffic: Traffic, masked: Masked) -> None:
        self._specs, self._traffic, self._masked = specs, traffic, masked
        self.passed_nbytes = 0
        """Total bytes read and written by operations that are neither matrix products nor loops.

        Those of attention, which a fused kernel keeps on the chip, are in `attention_nbytes`.
        """
        self.attention_nbytes = 0

    def peak(
        self, program: Program, results: list[Value], times: int = 1, carried: Container[Value] = ()
    ) -> Counter[str]:
        """Return the bytes at the fullest moment, by use, without those of the inputs."""
        program = scheduled(_with_inlined(program, self._traffic.copies))
        copied = [x for operation in program.operations for x, _ in self._traffic.copies.get(operation, [])]
        buffers = Buffers(program, results, copied, carried)
        timeline = Timeline()
        self._add_values(timeline, program, buffers, results, carried)
        self._add_copies(timeline, program)
        if self._masked is not Masked.NOT_MADE:
            self._add_masked(timeline, program, buffers)
        self._add_sums(timeline, program)
        for operation in program.operations:
            passed = times * self._passed(operation, buffers)
            self.attention_nbytes += passed * operation.is_fused_attention
            self.passed_nbytes += passed * (not operation.is_fused_attention)
        return self._fullest(timeline, program, times)

    def _fullest(self, timeline: Timeline, program: Program, times: int) -> Counter[str]:
        fullest, usage = Counter[str](), Counter[str]()
        for i, operation in enumerate(program.operations):
            timeline.start(usage, i)
            inside = self._inside(operation, times) if operation.bodies else _NOTHING
            if usage.total() + inside.total() > fullest.total():
                fullest = usage + inside
            timeline.end(usage, i)
        return fullest

    def _inside(self, operation: Operation, times: int) -> Counter[str]:
        """Return the peak of an operation's bodies, without values that are written into stacked results."""
        stacked = {tie.source for tie in operation.leaving if tie.target_stacked}
        turns = times * operation.turns
        results = [[x for x in body.outputs if x not in stacked] for body in operation.bodies]
        carried = {tie.target for tie in operation.carried}
        peaks = [self.peak(*x, turns, carried) for x in zip(operation.bodies, results, strict=True)]
        return max(peaks, key=Counter.total, default=Counter())

    def _add_values(
        self,
        timeline: Timeline,
        program: Program,
        buffers: Buffers,
        results: list[Value],
        carried: Container[Value],
    ) -> None:
        last = buffers.last_reads(results)
        # Values in the memory of the loop's carry, which the program outside counts.
        in_loop = {x for x in program.inputs if x in carried}
        ending: dict[int, list[Value]] = defaultdict(list)
        for value in in_loop & last.keys():
            ending[last[value]].append(value)
        for i, operation in enumerate(program.operations):
            for value in buffers.makes(operation):
                end = last.get(value, i)
                reused = self._reused(operation, value, buffers, ending[i])
                ending[end].append(value)
                if reused in in_loop:
                    in_loop.add(value)
                else:
                    # The results of a condition are those of a branch, which counts them until it ends.
                    in_place = reused is not None or operation.is_condition
                    nbytes = self._specs.nbytes(value)
                    timeline.add(_use(program, i, end), nbytes, i, end, in_place=in_place)

    def _reused(
        self, operation: Operation, value: Value, buffers: Buffers, ending: list[Value]
    ) -> Value | None:
        """Return the value whose memory a result reuses: one of `ending`, which nothing reads later."""
        if is_whole(operation) and not operation.bodies:
            memory = operation.primitive.memory
            return buffers.root(operation.inputs[0]) if memory.is_in_place else None
        if any(tie.target is value and tie.target_stacked for tie in operation.leaving):
            return None
        nbytes, replaceable = self._specs.nbytes(value), buffers.replaceable(operation)
        free = next((x for x in ending if x in replaceable and self._specs.nbytes(x) == nbytes), None)
        if free:
            ending.remove(free)
        return free

    def _add_copies(self, timeline: Timeline, program: Program) -> None:
        """Add gathered operands, which exist from their first use to their last."""
        uses: dict[tuple[Value, int], list[int]] = defaultdict(list)
        for i, operation in enumerate(program.operations):
            for copy in self._traffic.copies.get(operation, []):
                uses[copy].append(i)
        for (_, nbytes), indices in uses.items():
            timeline.add(GATHERED, nbytes, indices[0], indices[-1])

    def _add_masked(self, timeline: Timeline, program: Program, buffers: Buffers) -> None:
        """Add the rows of ragged products, once for each expert, with zeros for the rows of the others.

        The gradient of the experts needs both of its operands so. Other products need their rows in another
        order: a copy, if such a gradient also reads them, which then keeps them.
        """
        masked: dict[Value, list[int]] = defaultdict(list)
        copied: dict[Value, list[int]] = defaultdict(list)
        ragged = {i: x for i, x in enumerate(program.operations) if x.num_groups}
        for i, product in ragged.items():
            for value in map(buffers.root, product.inputs[: 1 if product.has_matrices else 2]):
                (copied if product.has_matrices else masked)[value].append(i)
        for value in masked.keys() & copied.keys():
            masked[value] = [copied[value][0], *masked[value]]
        for value, indices in (*masked.items(), *copied.items()):
            nbytes = ragged[indices[0]].num_groups * self._specs.nbytes(value)
            uses = [[i] for i in indices] if self._masked is Masked.AT_EACH_USE else [indices]
            for use in uses:
                timeline.add(WORKSPACE, nbytes, min(use), max(use))

    def _add_sums(self, timeline: Timeline, program: Program) -> None:
        """Add gradients before they are summed and scattered.

        They wait for each other, as XLA sends them together, until a product or a loop needs one. Where a
        device has only one term of a sum, that term is the partial sum.
        """
        waiting = {operation for operation in program.operations if self._traffic.sums.get(operation)}
        ends = _first_needed(program, waiting)
        for i, operation in enumerate(program.operations):
            terms = map(self._specs.nbytes, operation.inputs)
            is_reduction = operation.primitive.memory is Memory.REDUCED
            for nbytes in self._traffic.sums.get(operation, []):
                is_term = is_reduction and nbytes in terms
                timeline.add(GRADIENTS, nbytes, i, ends[operation], in_place=is_term)

    def _passed(self, operation: Operation, buffers: Buffers) -> int:
        outputs = buffers.makes(operation)
        if operation.bodies or is_product(operation) or not outputs:
            return 0
        # Of a table only the rows that are looked up are read.
        if operation.is_lookup:
            return 2 * self._specs.nbytes(outputs[0])
        memory = operation.primitive.memory
        if memory is Memory.OVERWRITTEN:
            return 2 * self._specs.nbytes(operation.inputs[1])
        # An update reads its operand, and reads and writes the changed elements.
        if memory is Memory.IN_PLACE:
            return 3 * self._specs.nbytes(operation.inputs[-1])
        return sum(map(self._specs.nbytes, (*outputs, *buffers.sources(operation))))


def _first_needed(program: Program, makers: Iterable[Operation]) -> dict[Operation, int]:
    """Return for each maker the index of the first product or loop that depends on its results.

    Without one: the end of the program.
    """
    indices = {operation: i for i, operation in enumerate(program.operations)}
    readers: dict[Value, list[Operation]] = defaultdict(list)
    for operation in program.operations:
        for value in operation.inputs:
            readers[value].append(operation)
    first = {}
    for maker in makers:
        visited, reached = {maker}, [maker]
        first[maker] = len(indices)
        # The loop appends to the list that it reads.
        for operation in reached:
            for reader in {reader for value in operation.outputs for reader in readers[value]} - visited:
                visited.add(reader)
                if is_product(reader) or reader.bodies:
                    first[maker] = min(first[maker], indices[reader])
                else:
                    reached.append(reader)
    return first


def _use(program: Program, start: int, end: int) -> str:
    """Return the use of a value.

    Values of the forward pass that the backward pass reads are activations. Values that the backward pass
    leaves are gradients. All others are workspace.
    """
    last = program.operations[min(end, len(program.operations) - 1)]
    is_gradient = program.operations[start].is_backward
    if is_gradient == last.is_backward:
        return WORKSPACE
    return GRADIENTS if is_gradient else ACTIVATIONS


def _with_inlined(program: Program, copies: Copies) -> Program:
    """Return a program in which each `shard_map` is the operations of its body.

    For XLA these operations are like all others: it fuses them with those around. The operands and results
    of the `shard_map` are views of the values inside; a moved operand is gathered.
    """
    return replace(program, operations=[x for outer in program.operations for x in _inlined(outer, copies)])


def _inlined(operation: Operation, copies: Copies) -> Iterator[Operation]:
    if not operation.is_mapped:
        yield operation
        return
    (body,) = operation.bodies
    moved = {value for value, _ in copies.get(operation, ())}
    for outside, inside in zip(operation.inputs, body.inputs, strict=True):
        yield _link(operation, "all_gather" if outside in moved else "copy", outside, inside)
    yield from _with_inlined(body, copies).operations
    for inside, outside in zip(body.outputs, operation.outputs, strict=True):
        yield _link(operation, "copy", inside, outside)


def _link(operation: Operation, kind: str, source: Value, target: Value) -> Operation:
    return Operation(operation.eqn, kind, [source], [target], operation.callers, operation.scope)
