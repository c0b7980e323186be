"""The mesh axes that split each value of a program, found from its inputs and outputs as Shardy does.

Axes spread along corresponding dimensions, forwards and backwards, until nothing changes: first through
operations that keep all dimensions in place, then through the others. If two dimensions want the same axis,
the one of the larger array gets it. See https://openxla.org/shardy/propagation; XLA uses it since JAX 0.7.
Corresponding dimensions have the same letter, as in the rules of the package `program`.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

from meshwright.program._internal import Dims, Operation, Program, Tie, Value, jaxprs, walk

Spec = tuple[tuple[str, ...], ...]
"""The mesh axes that split each dimension of an array, the slowest first."""
Letters = tuple[int | None, ...]
"""The letter of each dimension of an array; None for a dimension that cannot be split."""


class Splits(NamedTuple):
    """The letters of all operands and results of an operation."""

    inputs: list[Letters]
    """Letters of each operand."""
    outputs: list[Letters]
    """Letters of each result."""
    summed: frozenset[int]
    """Letters that are reduced over: if such a dimension is split, each device has a partial sum."""
    is_known: bool
    """False if the rule of the operation is not known."""
    alike: bool
    """True if all operands and results have the same letters, but for scalars."""


class Crossing(NamedTuple):
    """A value outside a `shard_map` and inside. Its own axes split the value outside; the others, both."""

    outside: Value
    inside: Value
    own: Spec
    """The axes of the `shard_map` that split each dimension."""
    manual: frozenset[str]
    """All axes of the `shard_map`."""

    def around(self, spec: Spec) -> Spec:
        """Return the spec outside, given one of either side: its own axes, then the others of `spec`."""
        return tuple((*own, *axes) for own, axes in zip(self.own, self.within(spec), strict=True))

    def within(self, spec: Spec) -> Spec:
        """Return the spec inside, given one of either side."""
        return tuple(tuple(axis for axis in axes if axis not in self.manual) for axes in spec)


Link = Operation | Tie | Crossing
"""Axes spread through links."""


def splits_of(operation: Operation) -> Splits:
    """Return how an operation without bodies may be split. Of merged dimensions, only the slowest can be."""
    rule = operation.rule
    return _splits(tuple(rule.inputs), tuple(rule.outputs), rule.summed, rule.whole, rule.is_known)


@lru_cache(4096)
def _splits(
    inputs: tuple[Dims, ...],
    outputs: tuple[Dims, ...],
    summed: frozenset[int],
    whole: frozenset[int],
    is_known: bool,
) -> Splits:
    """Return the splits of a rule from a cache, as layers and meshes repeat it."""
    whole = whole.union(*(dim[1:] for dims in (*inputs, *outputs) for dim in dims))

    def letters(arrays: Iterable[Dims]) -> list[Letters]:
        return [tuple(dim[0] if dim and dim[0] not in whole else None for dim in dims) for dims in arrays]

    of_inputs, of_outputs = letters(inputs), letters(outputs)
    alike = len({*filter(None, (*of_inputs, *of_outputs))}) <= 1
    return Splits(of_inputs, of_outputs, summed, is_known, alike)


def _broadcasts(operation: Operation) -> bool:
    """Return whether an operation repeats an operand, such as positions for each example.

    XLA spreads axes through such operations later, as the compiled step of a ViT shows.
    """
    out = operation.outputs[0].shape if operation.outputs else ()
    return any(1 < math.prod(x.shape) < math.prod(out) for x in operation.inputs)


def _wishes(
    sides: Sequence[tuple[Value, Letters]], specs: Mapping[Value, Spec], *, alike: bool
) -> list[tuple[int, tuple[str, ...]]]:
    """Return the axes that each letter has anywhere, those of the largest array first.

    Letters that have the same axes everywhere are left out.
    """
    side_specs = [specs.get(value) for value, _ in sides]
    if not any(side_specs) or (alike and side_specs.count(side_specs[0]) == len(side_specs)):
        return []
    entries, first, differing = [], dict[int | None, tuple[str, ...]](), set[int | None]()
    for (value, letters), spec in zip(sides, side_specs, strict=True):
        for letter, axes in zip(letters, spec or ((),) * len(letters), strict=True):
            if first.setdefault(letter, axes) != axes:
                differing.add(letter)
            if axes:
                entries.append((value, letter, axes))
    wishes = [wish for wish in entries if wish[1] in differing and wish[1] is not None]
    wishes.sort(key=lambda wish: -wish[0].nbytes)
    return list(dict.fromkeys((letter, axes) for _, letter, axes in wishes))


class Propagation:
    """The specs of all values of a program, as far as they are known."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.specs: dict[Value, Spec] = {}
        self._fixed: dict[Value, set[int]] = {}
        self._rules: dict[Operation, Splits] = {}
        self._sides: dict[Operation, list[tuple[Value, Letters]]] = {}
        self._is_first: dict[Operation, bool] = {}
        self._links: dict[Value, list[Link]] = defaultdict(list)
        self._first: deque[Link] = deque()
        self._later: deque[Link] = deque()
        self._waiting: set[Link] = set()

    def fix(self, value: Value, spec: PartitionSpec) -> None:
        """Fix the spec of a value; later calls change only dimensions that were left unconstrained."""
        if value not in self._fixed:
            self.specs[value] = self.canonical(spec, value)
            open_dims = {d for d, entry in enumerate(spec) if entry is PartitionSpec.UNCONSTRAINED}
            self._fixed[value] = {*range(len(value.shape))} - open_dims

    def canonical(self, spec: PartitionSpec, value: Value) -> Spec:
        """Return a `PartitionSpec` of `value` as tuples, one for each dimension."""
        return tuple(map(self._axes, (*spec, *(None,) * (len(value.shape) - len(spec)))))

    def _axes(self, entry: Any) -> tuple[str, ...]:
        """Return the axes of one entry of a `PartitionSpec`, without those of size 1."""
        if entry is None or entry is PartitionSpec.UNCONSTRAINED:
            return ()
        axes = (entry,) if isinstance(entry, str) else entry
        return tuple(axis for axis in axes if self.sizes.get(axis, 1) > 1)

    def spec(self, value: Value) -> Spec:
        return self.specs.get(value) or ((),) * len(value.shape)

    def ways(self, axes: Iterable[str]) -> int:
        return math.prod(self.sizes[axis] for axis in axes)

    def nbytes(self, value: Value, spec: Spec | None = None) -> int:
        """Return the bytes of one device's part of a value in its memory: none if the host keeps it."""
        if value.on_host:
            return 0
        return value.nbytes // self.ways(axis for dim in spec or self.spec(value) for axis in dim)

    def rule(self, operation: Operation) -> Splits:
        if operation not in self._rules:
            self._rules[operation] = splits_of(operation)
        return self._rules[operation]

    def sides(self, operation: Operation) -> list[tuple[Value, Letters]]:
        """Return the operands and results of an operation without bodies, with letters; no scalars."""
        if operation not in self._sides:
            rule = self.rule(operation)
            letters = (*rule.inputs, *rule.outputs)
            self._sides[operation] = [x for x in zip(operation.values, letters, strict=True) if x[1]]
        return self._sides[operation]

    def run(self, program: Program) -> None:
        """Spread the fixed specs over all other values of `program`."""
        for operation in walk(program):
            self._constrain(operation)
            for link in self._links_of(operation):
                self._enlist(link)
        while self._first or self._later:
            link = (self._first or self._later).popleft()
            self._waiting.discard(link)
            if isinstance(link, Tie):
                self._join(link)
            elif isinstance(link, Crossing):
                self._cross(link)
            else:
                self._spread(link)

    def _links_of(self, operation: Operation) -> Iterable[Link]:
        if operation.is_mapped:
            return self.crossings(operation)
        if operation.bodies:
            return (*operation.entering, *operation.leaving, *operation.carried)
        return (operation,) if self.sides(operation) else ()

    def crossings(self, operation: Operation) -> Iterator[Crossing]:
        """Yield the operands of a `shard_map` and then its results, each outside and inside."""
        mapped, (body,) = jaxprs.mapped_of(operation.eqn), operation.bodies
        operands = zip(operation.inputs, body.inputs, mapped.operands, strict=True)
        results = zip(operation.outputs, body.outputs, mapped.results, strict=True)
        for outside, inside, spec in (*operands, *results):
            yield Crossing(outside, inside, self.canonical(spec, outside), mapped.axes)

    def _enlist(self, link: Link) -> None:
        self._queue(link)
        for value in {x for x, _ in self.sides(link)} if isinstance(link, Operation) else link[:2]:
            self._links[value].append(link)

    def _queue(self, link: Link) -> None:
        if link in self._waiting:
            return
        self._waiting.add(link)
        is_first = not isinstance(link, Operation) or self._is_in_place(link)
        (self._first if is_first else self._later).append(link)

    def _is_in_place(self, operation: Operation) -> bool:
        """Return whether an operation keeps all dimensions in place, so that axes spread through it first."""
        if operation not in self._is_first:
            self._is_first[operation] = not (self.rule(operation).summed or _broadcasts(operation))
        return self._is_first[operation]

    def _constrain(self, operation: Operation) -> None:
        if operation.is_constraint:
            self.fix(operation.outputs[0], jaxprs.constraint_of(operation.eqn))
        elif operation.is_mapped:
            is_whole = jaxprs.mapped_of(operation.eqn).axes.issuperset(self.sizes)
            for link in self.crossings(operation):
                if link.outside not in self._fixed:
                    self.specs[link.outside] = link.own
                    self._fixed[link.outside] = {*range(len(link.own))} if is_whole else set()

    def _spread(self, operation: Operation) -> None:
        sides, alike = self.sides(operation), self._rules[operation].alike
        for letter, axes in _wishes(sides, self.specs, alike=alike):
            for value, letters in sides:
                if letter not in letters:
                    continue
                d, spec = letters.index(letter), self.specs.get(value)
                if not spec or spec[d] != axes:
                    self._extend(value, d, axes)

    def _join(self, tie: Tie) -> None:
        source, target = tie.source, tie.target
        if not (self.specs.get(source) or self.specs.get(target)):
            return
        for d in range(min(len(source.shape), len(target.shape))):
            mine, theirs = d + tie.source_stacked, d + tie.target_stacked
            if self.spec(source)[mine] != self.spec(target)[theirs]:
                self._extend(target, theirs, self.spec(source)[mine])
                self._extend(source, mine, self.spec(target)[theirs])

    def _cross(self, link: Crossing) -> None:
        for d, axes in enumerate(link.within(self.spec(link.outside))):
            self._extend(link.inside, d, axes)
        for d, axes in enumerate(link.around(self.spec(link.inside))):
            self._extend(link.outside, d, axes)

    def _extend(self, value: Value, d: int, axes: tuple[str, ...]) -> None:
        """Split a dimension over the next axes of `axes` that are free, as long as they divide its size."""
        spec = self.spec(value)
        if axes == spec[d] or d in self._fixed.get(value, ()) or axes[: len(spec[d])] != spec[d]:
            return
        used = {axis for other, dim in enumerate(spec) for axis in dim if other != d}
        new = spec[d]
        for axis in axes[len(new) :]:
            if axis in used or value.shape[d] % self.ways((*new, axis)):
                break
            new = (*new, axis)
        if new != spec[d]:
            self.specs[value] = (*spec[:d], new, *spec[d + 1 :])
            for link in self._links[value]:
                self._queue(link)
