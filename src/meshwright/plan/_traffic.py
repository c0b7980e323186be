"""What devices exchange for a program whose values are split over a mesh, operation by operation."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from meshwright.plan._dimensions import Rule
from meshwright.plan._program import Operation, Program, Tie, Value
from meshwright.plan._propagation import Propagation, Spec
from meshwright.profiling import Collective


class Traffic:
    """The exchanges of a program."""

    def __init__(self, specs: Propagation) -> None:
        self.specs = specs
        self.collectives: list[Collective] = []
        self.assigned: dict[Operation, dict[str, int]] = {}
        """The axes that share the work of an operation, with the letter that each splits."""
        self.copies: dict[Operation, list[tuple[Value, int]]] = defaultdict(list)
        """The operands that are brought elsewhere for an operation, and their bytes there."""
        self._uses: Counter[Value] = Counter()
        self._pending: dict[Value, tuple[tuple[str, ...], int, str]] = {}
        self._moved: set[tuple[Value, Spec]] = set()

    def run(self, program: Program, times: int = 1) -> None:
        self._uses.update(x for op in program.operations for x in op.inputs)
        self._uses.update(program.outputs)
        for operation in program.operations:
            self._operation(operation, times)
        for value in program.outputs:
            self._resolve(value, times)

    def _operation(self, operation: Operation, times: int) -> None:
        if operation.bodies:
            self._loop(operation, times)
            return
        if operation.kind == "sharding_constraint":
            self._resolve(operation.inputs[0], times)
            self._move(operation.inputs[0], self.specs.spec(operation.outputs[0]), times)
            return
        rule = self.specs.rule(operation)
        if not self._deferred(operation):
            for value in operation.inputs:
                self._resolve(value, times)
        axes = self.assigned[operation] = self._assign(operation, rule)
        for value, letters in zip(operation.inputs, rule.inputs, strict=True):
            self._move(value, _projected(letters, axes, self.specs.spec(value)), times, operation)
        summed = tuple(axis for axis, letter in axes.items() if letter in rule.summed)
        for value, letters in zip(operation.outputs, rule.outputs, strict=True):
            made = _projected(letters, axes, self.specs.spec(value))
            if operation.inputs and value not in self._pending:
                self._settle(operation, value, made, summed, times)

    def _loop(self, loop: Operation, times: int) -> None:
        for value in loop.inputs:
            self._resolve(value, times)
        outside = {*loop.inputs}
        for tie in loop.ties:
            each = 1 if tie.source in outside or not tie.target_stacked else loop.turns
            self._tie(tie, times * each)
        bodies = (
            loop.bodies if loop.kind != "cond" else [max(loop.bodies, key=lambda body: len(body.operations))]
        )
        for body in bodies:
            self.run(body, times * loop.turns)
        for tie in loop.turn_ties:
            self._tie(tie, times * loop.turns)

    def _tie(self, tie: Tie, times: int) -> None:
        source = self.specs.spec(tie.source)[int(tie.source_stacked) :]
        target = self.specs.spec(tie.target)[int(tie.target_stacked) :]
        if source != target:
            whole = ((),) if tie.source_stacked else ()
            self._move(tie.source, (*whole, *target), times)

    def _deferred(self, operation: Operation) -> bool:
        """Whether two sums over devices are added before they are made, as XLA does."""
        if operation.kind not in ("add", "add_any") or len(operation.inputs) != 2:
            return False
        first, second = (self._pending.get(x) for x in operation.inputs)
        if not (
            first and second and first[0] == second[0] and all(self._uses[x] == 1 for x in operation.inputs)
        ):
            return False
        for value in operation.inputs:
            self._pending.pop(value, None)
        self._pending[operation.outputs[0]] = first
        return True

    def _assign(self, operation: Operation, rule: Rule) -> dict[str, int]:
        """Return for each axis the letter that it splits: the one for which least is exchanged."""
        axes = dict.fromkeys(a for x in operation.values for dim in self.specs.spec(x) for a in dim)
        assigned: dict[str, int] = {}
        for axis in axes:
            candidates = self._letters_on(axis, operation, rule)
            if candidates:
                assigned[axis] = min(candidates, key=lambda x: self._cost(axis, x, operation, rule))
        return assigned

    def _letters_on(self, axis: str, operation: Operation, rule: Rule) -> list[int]:
        sides = zip(operation.values, rule.sides, strict=True)
        return list(
            dict.fromkeys(
                letter
                for value, letters in sides
                for letter, dim in zip(letters, self.specs.spec(value), strict=True)
                if letter is not None and axis in dim
            )
        )

    def _cost(self, axis: str, letter: int, operation: Operation, rule: Rule) -> float:
        """Return the bytes sent, if `axis` splits the dimensions of `letter` during the operation."""
        n, total = self.specs.sizes[axis], 0.0
        for i, (value, letters) in enumerate(zip(operation.values, rule.sides, strict=True)):
            spec, is_output = self.specs.spec(value), i >= len(operation.inputs)
            has = next((x for x, dim in zip(letters, spec, strict=True) if axis in dim), "none")
            nbytes = self.specs.nbytes(value)
            if letter in letters and letter != has:
                total += nbytes / n * (n - 1) if has != "none" else nbytes * (n - 1) if is_output else 0
            elif letter not in letters and is_output and letter in rule.summed:
                total += nbytes * (n - 1) if has != "none" else 2 * nbytes
            elif letter not in letters and has != "none" and not is_output:
                total += nbytes * (n - 1)
        return total

    def _settle(
        self, operation: Operation, value: Value, made: Spec, summed: tuple[str, ...], times: int
    ) -> None:
        """Bring a result to where it is wanted, partial sums first."""
        wanted = self.specs.spec(value)
        scattered = tuple(axis for axis in summed if any(axis in dim for dim in wanted))
        left = tuple(axis for axis in summed if axis not in scattered)
        if scattered:
            nbytes = self.specs.nbytes(value) * self.specs.ways(scattered)
            self._add("reduce-scatter", scattered, nbytes, times, _source(operation))
            made = wanted
        if left:
            self._pending[value] = (left, self.specs.nbytes(value), _source(operation))
            if not _may_wait(operation):
                self._resolve(value, times)
        self._reshard(value, made, wanted, times, _source(operation))

    def _resolve(self, value: Value, times: int) -> None:
        if value in self._pending:
            axes, nbytes, source = self._pending.pop(value)
            self._add("all-reduce", axes, nbytes, times, source)

    def _move(self, value: Value, wanted: Spec, times: int, operation: Operation | None = None) -> None:
        """Bring an operand to where an operation needs it, once."""
        if (value, wanted) in self._moved:
            return
        self._moved.add((value, wanted))
        before = len(self.collectives)
        source = value.name or (_source(operation) if operation else "")
        self._reshard(value, self.specs.spec(value), wanted, times, source)
        if operation and len(self.collectives) > before:
            self.copies[operation].append((value, self.specs.nbytes(value, wanted)))

    def _reshard(self, value: Value, before: Spec, after: Spec, times: int, source: str) -> None:
        held = {axis: d for d, dim in enumerate(before) for axis in dim}
        wanted = {axis: d for d, dim in enumerate(after) for axis in dim}
        moved = tuple(axis for axis in held if axis in wanted and held[axis] != wanted[axis])
        gathered = tuple(axis for axis in held if axis not in wanted)
        if moved:
            self._add("all-to-all", moved, self.specs.nbytes(value, after), times, source)
        if gathered:
            self._add("all-gather", gathered, self.specs.nbytes(value, after), times, source)

    def _add(self, kind: str, axes: tuple[str, ...], nbytes: int, times: int, source: str) -> None:
        n = self.specs.ways(axes)
        rounds = 2 if kind == "all-reduce" else 1
        sent = rounds * nbytes * (n - 1) // n
        if nbytes:
            axes = tuple(axis for axis in self.specs.sizes if axis in axes)
            self.collectives.append(Collective(kind, axes, n, times, nbytes, sent, False, source))


def _projected(letters: Iterable[int | None], axes: dict[str, int], like: Spec) -> Spec:
    """Return the spec of an array in an operation whose letters are split so, axes in the order of `like`."""
    order = [axis for dim in like for axis in dim]
    ranked = sorted(axes, key=lambda axis: order.index(axis) if axis in order else len(order))
    return tuple(tuple(a for a in ranked if letter is not None and axes[a] == letter) for letter in letters)


def _may_wait(operation: Operation) -> bool:
    return operation.kind == "dot_general"


def _source(operation: Operation) -> str:
    return f"{operation.eqn.source_info.name_stack}/{operation.kind}".lstrip("/")
