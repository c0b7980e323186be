"""The collectives that devices need for a program whose values are split over a mesh.

A program may also contain collectives of its own, inside `jax.shard_map`.

While an operation runs, each mesh axis splits one dimension. Operands and results may ask for different
ones, as when weights are split over the axes of the batch. The dimension that most of them ask for is taken.
XLA does so even if the batch is so small that sending it to the weights would be cheaper. In a tie, the
dimension that exchanges fewest bytes is taken.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache

from meshwright.plan._estimate._propagation import Letters, Propagation, Spec, Splits
from meshwright.plan._estimate._sums import PendingSums, Sum
from meshwright.program._internal import Algebra, Collective, Memory, Operation, Program, Tie, Value, jaxprs

Shares = dict[str, int]
"""For each mesh axis, the letter of the dimensions that it splits while an operation runs."""


class Traffic:
    """The collectives of a program."""

    def __init__(self, specs: Propagation) -> None:
        self.specs = specs
        self.collectives: list[Collective] = []
        self.shares: dict[Operation, Shares] = {}
        self.copies: dict[Operation, list[tuple[Value, int]]] = defaultdict(list)
        """For each operation, its moved or gathered operands, and their bytes after the move."""
        self.sums: dict[Operation, list[int]] = defaultdict(list)
        """For each operation, the bytes of its partial sums before they are summed and scattered."""
        self._pending = PendingSums(specs)
        self._moved: dict[tuple[Value, Spec, float], bool] = {}
        """For each operand and target spec, whether the operand had to be moved."""
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
        shares = self.shares[operation] = _shares(operation, self.specs)
        for value, letters in zip(operation.inputs, rule.inputs, strict=True):
            self._bring(value, _spec_of(letters, shares, self.specs.spec(value)), times, operation)
        summed = tuple(axis for axis, letter in shares.items() if letter in rule.summed)
        for value, letters in zip(operation.outputs, rule.outputs, strict=True):
            spec = _spec_of(letters, shares, self.specs.spec(value))
            if operation.inputs:
                self._deliver(operation, value, spec, summed, times)

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
        branches = [self._collected(body, turns, loop) for body in loop.bodies]
        self._open_loops -= loop.is_while
        if loop.is_condition:
            branches = [max(branches, key=lambda branch: sum(x.times * x.sent_nbytes for x in branch))]
        self.collectives += [collective for branch in branches for collective in branch]
        for tie in loop.carried:
            self._tie(tie, turns)

    def _collected(self, body: Program, times: int, loop: Operation) -> list[Collective]:
        outer, self.collectives = self.collectives, []
        self.run(body, times, {tie.source: tie.target for tie in loop.leaving})
        inner, self.collectives = self.collectives, outer
        return inner

    def _tie(self, tie: Tie, times: int) -> None:
        source = self.specs.spec(tie.source)[int(tie.source_stacked) :]
        target = self.specs.spec(tie.target)[int(tie.target_stacked) :]
        if source != target:
            whole = ((),) if tie.source_stacked else ()
            self._move(tie.source, (*whole, *target), times)

    def _bring(self, value: Value, target: Spec, times: int, operation: Operation) -> None:
        """Move an operand to the spec that an operation needs, after any pending sum of it."""
        self._resolve(value, times, target)
        self._move(value, target, times, operation)

    def _deliver(
        self, operation: Operation, value: Value, spec: Spec, summed: tuple[str, ...], times: int
    ) -> None:
        """Move a result to its spec in the program, after its partial sums are summed or put off."""
        target = self.specs.spec(value)
        scattered = tuple(axis for axis in summed if any(axis in dim for dim in target))
        rest = tuple(axis for axis in summed if axis not in scattered)
        if scattered:
            nbytes = self.specs.nbytes(value) * self.specs.ways(scattered)
            self._add("reduce-scatter", scattered, nbytes, times, _source(operation))
            self.sums[operation].append(nbytes)
            spec = target
        if rest:
            self._pending[value] = Sum(rest, self.specs.nbytes(value), _source(operation))
            if not (is_product(operation) or _is_scattered_sum(operation)):
                self._resolve(value, times)
        if spec != target:
            self._reshard(value, spec, target, times, _source(operation))

    def _resolve(self, value: Value, times: int, target: Spec = ()) -> None:
        """Make a pending sum, as a reduce-scatter if every reader wants its parts, else as an all-reduce."""
        if pending := self._pending.pop(value):
            is_scattered = self._pending.is_scattered(value, pending.axes, target)
            kind = "reduce-scatter" if is_scattered else "all-reduce"
            self._add(kind, pending.axes, pending.nbytes, times, pending.source)

    def _move(self, value: Value, target: Spec, times: int, operation: Operation | None = None) -> None:
        """Move an operand to a spec, once for each dtype that it is widened to."""
        spec = self.specs.spec(value)
        if spec == target:
            return
        width = value.itemsize
        if operation and is_product(operation):
            width = max(x.itemsize for x in operation.inputs)
        key = (value, target, width)
        if key not in self._moved:
            source = value.name or (_source(operation) if operation else "")
            self._moved[key] = self._reshard(value, spec, target, times, source)
        if operation and self._moved[key]:
            self.copies[operation].append((value, self.specs.nbytes(value, target)))

    def _reshard(self, value: Value, old: Spec, new: Spec, times: int, source: str) -> bool:
        """Add the collectives that move an array from one spec to another; return whether there are any."""
        moved, gathered = _exchanged(old, new)
        nbytes = self.specs.nbytes(value, new)
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
    primitive = operation.primitive
    return primitive.algebra is Algebra.SUMMED and primitive.memory is Memory.IN_PLACE


def _exchanged(old: Spec, new: Spec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the axes that move to another dimension, and the axes that no longer split any dimension."""
    old_dims = {axis: d for d, dim in enumerate(old) for axis in dim}
    new_dims = {axis: d for d, dim in enumerate(new) for axis in dim}
    moved = tuple(axis for axis in old_dims if axis in new_dims and old_dims[axis] != new_dims[axis])
    return moved, tuple(axis for axis in old_dims if axis not in new_dims)


def _source(operation: Operation) -> str:
    return f"{operation.eqn.source_info.name_stack}/{operation.kind}".lstrip("/")


def exchange_of(operation: Operation) -> tuple[str, tuple[str, ...], list[Value]] | None:
    """Return the kind, mesh axes and arrays of a collective; None if the operation is not one."""
    kind = operation.primitive.exchange
    if not kind:
        return None
    values = operation.outputs if kind == "all-gather" else operation.inputs
    return kind, jaxprs.exchanged_axes(operation.eqn), values


def _shares(operation: Operation, specs: Propagation) -> Shares:
    """Return how the work of an operation is split; axes that split none of its dimensions are left out."""
    rule = specs.rule(operation)
    return {
        axis: min(letters, key=lambda letter: _sent(axis, letter, operation, rule, specs))
        if len(letters) > 1
        else letters[0]
        for axis, letters in _letters(operation, specs).items()
    }


def _spec_of(letters: Letters, shares: Shares, like: Spec) -> Spec:
    """Return the spec of an operand or result during an operation, with axes in the order of `like`."""
    return _cached_spec(letters, tuple(shares.items()), like) if shares else ((),) * len(letters)


@lru_cache(4096)
def _cached_spec(letters: Letters, shares: tuple[tuple[str, int], ...], like: Spec) -> Spec:
    """Return a spec from a cache, as operations in a row often repeat it."""
    of_letter: dict[int | None, list[str]] = {}
    order = [axis for dim in like for axis in dim]
    for axis, letter in sorted(shares, key=lambda x: order.index(x[0]) if x[0] in order else len(order)):
        of_letter.setdefault(letter, []).append(axis)
    return tuple([tuple(of_letter.get(letter, ())) for letter in letters])


def _letters(operation: Operation, specs: Propagation) -> dict[str, list[int]]:
    """Return for each axis the letters that most operands and results want on it; several in a tie."""
    votes: dict[str, dict[int, int]] = {}
    for value, letters in specs.sides(operation):
        # A value without a spec is not split.
        for letter, axes in zip(letters, specs.specs.get(value, ()), strict=False):
            for axis in axes:
                of_axis = votes.setdefault(axis, {})
                if letter is not None:
                    of_axis[letter] = of_axis.get(letter, 0) + 1
    return {
        axis: [letter for letter, number in of_axis.items() if number == max(of_axis.values())]
        for axis, of_axis in votes.items()
        if of_axis
    }


def _letter_on(axis: str, letters: Iterable[int | None], spec: Spec) -> int | None:
    return next((letter for letter, dim in zip(letters, spec, strict=True) if axis in dim), None)


def _sent(axis: str, letter: int, operation: Operation, rule: Splits, specs: Propagation) -> float:
    """Return the approximate bytes that are sent if `axis` splits the dimensions of `letter`."""
    n, total = specs.sizes[axis], 0.0
    for value, letters in zip(operation.inputs, rule.inputs, strict=True):
        if _is_on(axis, specs.spec(value)) and _letter_on(axis, letters, specs.spec(value)) != letter:
            total += specs.nbytes(value) * (1 / n if letter in letters else 1) * (n - 1)
    for value, letters in zip(operation.outputs, rule.outputs, strict=True):
        is_on, nbytes = _is_on(axis, specs.spec(value)), specs.nbytes(value)
        if letter in rule.summed:
            total += nbytes * (n - 1) if is_on else 2 * nbytes
        elif letter in letters and _letter_on(axis, letters, specs.spec(value)) != letter:
            total += nbytes * (1 / n if is_on else 1) * (n - 1)
    return total


def _is_on(axis: str, spec: Spec) -> bool:
    return any(axis in dim for dim in spec)
