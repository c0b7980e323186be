"""The collectives that devices need for a program whose values are split over a mesh.

A program may also contain collectives of its own, inside `jax.shard_map`.
"""

from collections import defaultdict
from collections.abc import Mapping

from meshwright.plan._estimate._propagation import Propagation, Spec
from meshwright.plan._estimate._shares import Shares, shared_spec, shares_of
from meshwright.plan._estimate._sums import PendingSums, Sum
from meshwright.program._internal import Algebra, Collective, Memory, Operation, Program, Tie, Value, jaxprs


class Traffic:
    """The collectives of a program."""

    def __init__(self, specs: Propagation) -> None:
        self.specs = specs
        self.collectives: list[Collective] = []
        self.shares: dict[Operation, Shares] = {}
        self.copies: dict[Operation, list[tuple[Value, int]]] = defaultdict(list)
        """For each operation, the operands that are moved or gathered for it, and their bytes then."""
        self.sums: dict[Operation, list[int]] = defaultdict(list)
        """For each operation, the bytes of its partial sums before they are summed and scattered."""
        self._pending = PendingSums(specs)
        self._moved: dict[tuple[Value, Spec, float], bool] = {}
        """For each operand and wanted spec, whether the operand had to be moved."""
        self._open_loops = 0

    def run(self, program: Program, times: int = 1, results: Mapping[Value, Value] | None = None) -> None:
        """Add the collectives of a program that runs `times` times.

        `results` maps a body's outputs to those outside.
        """
        self._pending.meet(program)
        for operation in program.operations:
            self._run(operation, times)
        for value in program.outputs:
            if outside := (results or {}).get(value):
                self._pending.leave(value, outside)
            self._resolve(value, times)

    def _run(self, operation: Operation, times: int) -> None:
        if self._pending.put_off_by(operation):
            return
        if operation.is_mapped:
            self._run_manual(operation, times)
        elif operation.bodies:
            self._run_loop(operation, times)
        elif operation.is_constraint:
            self._bring(operation.inputs[0], self.specs.spec(operation.outputs[0]), times, operation)
        elif exchange := exchange_of(operation):
            kind, axes, values = exchange
            self._add(kind, axes, sum(map(self.specs.nbytes, values)), times, _source(operation))
        else:
            self._run_one(operation, times)

    def _run_one(self, operation: Operation, times: int) -> None:
        rule = self.specs.rule(operation)
        shares = self.shares[operation] = shares_of(operation, self.specs)
        for value, letters in zip(operation.inputs, rule.inputs, strict=True):
            self._bring(value, shared_spec(letters, shares, self.specs.spec(value)), times, operation)
        summed = tuple(axis for axis, letter in shares.items() if letter in rule.summed)
        for value, letters in zip(operation.outputs, rule.outputs, strict=True):
            made = shared_spec(letters, shares, self.specs.spec(value))
            if operation.inputs:
                self._deliver(operation, value, made, summed, times)

    def _run_manual(self, operation: Operation, times: int) -> None:
        for link in [*self.specs.crossings(operation)][: len(operation.inputs)]:
            self._bring(link.outside, link.around(self.specs.spec(link.outside)), times, operation)
        self.run(operation.bodies[0], times)

    def _run_loop(self, loop: Operation, times: int) -> None:
        turns = times * loop.turns
        for value in loop.inputs:
            self._resolve(value, times)
        for tie in (*loop.entering, *loop.leaving):
            self._tie(tie, turns if tie.target_stacked else times)
        self._pending.enter(loop)
        self._open_loops += loop.is_while
        found = [self._collected(body, turns, loop) for body in loop.bodies]
        self._open_loops -= loop.is_while
        if loop.is_condition:
            found = [max(found, key=lambda of: sum(each.times * each.sent_nbytes for each in of))]
        self.collectives += [each for of in found for each in of]
        for tie in loop.carried:
            self._tie(tie, turns)

    def _collected(self, body: Program, times: int, loop: Operation) -> list[Collective]:
        before, self.collectives = self.collectives, []
        self.run(body, times, {tie.source: tie.target for tie in loop.leaving})
        found, self.collectives = self.collectives, before
        return found

    def _tie(self, tie: Tie, times: int) -> None:
        source = self.specs.spec(tie.source)[int(tie.source_stacked) :]
        target = self.specs.spec(tie.target)[int(tie.target_stacked) :]
        if source != target:
            whole = ((),) if tie.source_stacked else ()
            self._move(tie.source, (*whole, *target), times)

    def _bring(self, value: Value, wanted: Spec, times: int, operation: Operation) -> None:
        """Move an operand to the spec that an operation needs, after any pending sum of it."""
        self._resolve(value, times, wanted)
        self._move(value, wanted, times, operation)

    def _deliver(
        self, operation: Operation, value: Value, made: Spec, summed: tuple[str, ...], times: int
    ) -> None:
        """Move a result to its spec in the program, after its partial sums are summed or put off."""
        wanted = self.specs.spec(value)
        scattered = tuple(axis for axis in summed if any(axis in dim for dim in wanted))
        left = tuple(axis for axis in summed if axis not in scattered)
        if scattered:
            nbytes = self.specs.nbytes(value) * self.specs.ways(scattered)
            self._add("reduce-scatter", scattered, nbytes, times, _source(operation))
            self.sums[operation].append(nbytes)
            made = wanted
        if left:
            self._pending[value] = Sum(left, self.specs.nbytes(value), _source(operation))
            if not (is_product(operation) or _is_scattered_sum(operation)):
                self._resolve(value, times)
        if made != wanted:
            self._reshard(value, made, wanted, times, _source(operation))

    def _resolve(self, value: Value, times: int, wanted: Spec = ()) -> None:
        """Make a pending sum, as a reduce-scatter if every reader wants its parts, else as an all-reduce."""
        if made := self._pending.pop(value):
            kind = "reduce-scatter" if self._pending.is_scattered(value, made.axes, wanted) else "all-reduce"
            self._add(kind, made.axes, made.nbytes, times, made.source)

    def _move(self, value: Value, wanted: Spec, times: int, operation: Operation | None = None) -> None:
        """Move an operand to a spec, once for each dtype that it is widened to."""
        before = self.specs.spec(value)
        if before == wanted:
            return
        width = value.itemsize
        if operation and is_product(operation):
            width = max(x.itemsize for x in operation.inputs)
        key = (value, wanted, width)
        if key not in self._moved:
            source = value.name or (_source(operation) if operation else "")
            self._moved[key] = self._reshard(value, before, wanted, times, source)
        if operation and self._moved[key]:
            self.copies[operation].append((value, self.specs.nbytes(value, wanted)))

    def _reshard(self, value: Value, before: Spec, after: Spec, times: int, source: str) -> bool:
        """Add what moves an array from one spec to another; return whether that is anything."""
        moved, gathered = _exchanged(before, after)
        nbytes = self.specs.nbytes(value, after)
        if moved:
            self._add("all-to-all", moved, nbytes, times, source)
        if gathered:
            self._add("all-gather", gathered, nbytes, times, source)
        return bool(moved or gathered)

    def _add(self, kind: str, axes: tuple[str, ...], nbytes: int, times: int, source: str) -> None:
        """Add a collective, with the bytes that one device sends in a ring, as in `hlo.Collective`."""
        axes = tuple(axis for axis in self.specs.sizes if axis in axes)
        n = self.specs.ways(axes)
        rounds = {"all-reduce": 2 * (n - 1), "collective-permute": n}.get(kind, n - 1)
        if nbytes and n > 1:
            is_open = self._open_loops > 0
            self.collectives.append(
                Collective(kind, axes, n, times, nbytes, rounds * nbytes // n, False, source, is_open)
            )


def is_product(operation: Operation) -> bool:
    return operation.primitive.work is not None


def _is_scattered_sum(operation: Operation) -> bool:
    """Return whether an operation adds rows to those of a table."""
    known = operation.primitive
    return known.algebra is Algebra.SUMMED and known.memory is Memory.IN_PLACE


def _exchanged(before: Spec, after: Spec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the axes that move to another dimension, and the axes that no longer split any dimension."""
    held = {axis: d for d, dim in enumerate(before) for axis in dim}
    wanted = {axis: d for d, dim in enumerate(after) for axis in dim}
    moved = tuple(axis for axis in held if axis in wanted and held[axis] != wanted[axis])
    return moved, tuple(axis for axis in held if axis not in wanted)


def _source(operation: Operation) -> str:
    return f"{operation.eqn.source_info.name_stack}/{operation.kind}".lstrip("/")


def exchange_of(operation: Operation) -> tuple[str, tuple[str, ...], list[Value]] | None:
    """Return the kind, mesh axes and arrays of a collective; None if the operation is not one."""
    kind = operation.primitive.exchange
    if not kind:
        return None
    values = operation.outputs if kind == "all-gather" else operation.inputs
    return kind, jaxprs.exchanged_axes(operation.eqn), values
