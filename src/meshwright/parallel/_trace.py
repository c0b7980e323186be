"""A walk that follows every dimension of a model through its program and takes notes.

A dimension is a product of factors: if a projection's 4,096 outputs are reshaped to 32 heads of 128, then
that dimension is 32 × 128, also in the weight that made it. A factor is a number; the slowest comes first.
When two dimensions are found equal, both are cut until their factors pair up.

Dimensions that are added, contracted or reshaped into each other become one (see `Factors`). The operation's
rule says which dimensions correspond, see the package `program`. The notes record the weights that read and
write each dimension, and which dimensions are heads, experts, stacked layers or rows of tables.
`_traced.py` turns them into the structure of a model. Names play no part.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from meshwright.program._internal import Dims, Operation, Program, Rule, Value

Factor = int
Product = tuple[Factor, ...]


class Factors:
    """A union-find over factors; each factor may also be cut in two."""

    def __init__(self) -> None:
        self._size: list[int] = []
        self._parent: list[Factor] = []
        self._cut: dict[Factor, tuple[Factor, Factor]] = {}

    def new(self, size: int) -> Product:
        """Return a new dimension of `size`, a single factor."""
        return (self._new(size),) if size > 1 else ()

    def size(self, factor: Factor) -> int:
        """Return the value of a factor."""
        return self._size[factor]

    def flat(self, product: Product) -> list[Factor]:
        """Return the uncut factors of `product`, each by its representative."""
        flat = []
        for factor in product:
            root = self._root(factor)
            flat.extend(self.flat(self._cut[root]) if root in self._cut else [root])
        return flat

    def unify(self, first: Product, second: Product) -> None:
        """Make two dimensions of equal size the same, as far as their factors can be paired."""
        firsts, seconds = self.flat(first), self.flat(second)
        while firsts and seconds:
            a, b = firsts.pop(0), seconds.pop(0)
            size_a, size_b = self._size[a], self._size[b]
            if size_a == size_b:
                self._parent[max(a, b)] = min(a, b)
            elif size_a % size_b == 0:
                major, minor = self._divide(a, size_b)
                firsts, seconds = [major, minor, *firsts], [b, *seconds]
            elif size_b % size_a == 0:
                major, minor = self._divide(b, size_a)
                firsts, seconds = [a, *firsts], [major, minor, *seconds]
            else:
                return

    def _divide(self, factor: Factor, major: int) -> tuple[Factor, Factor]:
        self._cut[factor] = self._new(major), self._new(self._size[factor] // major)
        return self._cut[factor]

    def _new(self, size: int) -> Factor:
        self._size.append(size)
        self._parent.append(len(self._parent))
        return len(self._size) - 1

    def _root(self, factor: Factor) -> Factor:
        while self._parent[factor] != factor:
            self._parent[factor] = self._parent[self._parent[factor]]
            factor = self._parent[factor]
        return factor


class Lookup(NamedTuple):
    """A lookup of matrices in a parameter, such as those of experts."""

    weight: str
    """The parameter."""
    rows: Product
    """Its dimension that is looked up by."""
    counts: frozenset[Product]
    """The dimensions of the result that count lookups."""


class Array(NamedTuple):
    """The dimensions of an array, and the parameter that it comes from."""

    dims: tuple[Product, ...]
    weight: str | None = None
    """The parameter that it is, perhaps cast, transposed or sliced."""
    lookup: Lookup | None = None
    """The lookup whose result it is, perhaps cast."""


class Walk:
    """A walk through a program, with its notes."""

    def __init__(self) -> None:
        self.factors = Factors()
        self.arrays: dict[Value, Array] = {}
        self.weights: list[str] = []
        """Weights in the order of their first use."""
        self.convolutions: set[str] = set()
        """Weights that are kernels of convolutions."""
        self.repeated: set[str] = set()
        """Weights that every iteration of a loop reads whole, as in a recurrent network."""
        self.read: dict[Factor, set[str]] = defaultdict(set)
        """Weights that are contracted over a factor or looked up by it."""
        self.written: dict[Factor, set[str]] = defaultdict(set)
        """Weights whose outputs have a factor."""
        self.marked: dict[str, list[Product]] = defaultdict(list)
        """Dimensions marked as `input`, `layers`, `experts`, `rows` or `indexed`. If two activations are
        multiplied, as in attention, contracted dimensions are `inner` and batch dimensions `outer`."""
        self.together: list[tuple[Product, Product]] = []
        """Pairs that a weight is contracted over together: heads and head size, or experts and features."""
        self.slices: list[tuple[Product, Product]] = []
        """Pairs of a dimension and another that is a slice of it."""

    def array(self, value: Value) -> Array:
        if value not in self.arrays:
            self.arrays[value] = Array(tuple(map(self.factors.new, value.shape)))
        return self.arrays[value]

    def run(self, program: Program) -> None:
        """Follow the dimensions of a program's inputs, and of the weights among them, to its outputs."""
        for operation in program.operations:
            if operation.entering or operation.leaving:
                self._loop(operation)
            elif operation.bodies and _is_alike(operation, operation.bodies[0]):
                self._inside(operation, operation.bodies[0])
            else:
                self._apply(operation)

    def _loop(self, loop: Operation) -> None:
        for source, target, is_stacked, _ in loop.entering:
            array = self.array(source)
            self.arrays[target] = Array(array.dims[is_stacked:], array.weight)
            if is_stacked and array.weight:
                self.marked["layers"].append(array.dims[0])
            elif array.weight:
                self.repeated.add(array.weight)
        for body in loop.bodies:
            self.run(body)
        for source, target, *_ in loop.carried:
            self._unify(self.array(source).dims, self.array(target).dims)
        turns = self.factors.new(loop.turns)
        for source, target, _, is_stacked in loop.leaving:
            array = self.array(source)
            dims = (turns, *array.dims) if is_stacked else array.dims
            self._unify(self.arrays.setdefault(target, Array(dims, array.weight)).dims, dims)

    def _inside(self, mapped: Operation, body: Program) -> None:
        """Follow a `shard_map` that leaves all dimensions as they are."""
        self.arrays |= zip(body.inputs, map(self.array, mapped.inputs), strict=True)
        self.run(body)
        self.arrays |= zip(mapped.outputs, map(self.array, body.outputs), strict=True)

    def _apply(self, operation: Operation) -> None:
        rule, arrays = operation.rule, [self.array(value) for value in operation.inputs]
        letters, weight = self._letters(rule, arrays), _weight(operation, arrays)
        is_same = operation.primitive.is_same
        for i, (value, dims) in enumerate(zip(operation.outputs, rule.outputs, strict=True)):
            sized = zip(dims, value.shape, strict=True)
            products = tuple([self._product(letters, rule, *dim) for dim in sized])
            self.arrays[value] = Array(products, weight, arrays[i].lookup if is_same else None)
        for whole, piece in rule.pieces:
            self._note_slice(letters[whole], () if piece is None else letters[piece])
        if operation.is_lookup:
            self._note_lookup(operation.outputs[0], rule, arrays[0], letters)
        elif operation.primitive.product:
            self._note_product(operation, rule, arrays, letters)

    def _letters(self, rule: Rule, arrays: Sequence[Array]) -> dict[int, Product]:
        """Return the dimension of each letter of a rule; dimensions that share a letter become one."""
        letters: dict[int, Product] = {}
        for array, dims in zip(arrays, rule.inputs, strict=True):
            for product, dim in zip(array.dims, dims, strict=True):
                if len(dim) == 1:
                    other = letters.setdefault(dim[0], product)
                else:
                    other = self._product(letters, rule, dim) if dim else product
                if other is not product:
                    self.factors.unify(product, other)
        return letters

    def _product(
        self, letters: dict[int, Product], rule: Rule, dim: tuple[int, ...], size: int = 1
    ) -> Product:
        """Return the dimension made of these letters, with new factors for unknown letters."""
        if len(dim) == 1 and dim[0] in letters:
            return letters[dim[0]]
        for letter in dim:
            if letter not in letters:
                letters[letter] = self.factors.new(size if len(dim) == 1 else rule.sizes[letter])
        return tuple(chain(*(letters[letter] for letter in dim))) if dim else self.factors.new(size)

    def _unify(self, some: Iterable[Product], others: Iterable[Product]) -> None:
        for first, second in zip(some, others, strict=True):
            self.factors.unify(first, second)

    def _note_weight(self, weight: str, *, reads: list[Product], writes: list[Product]) -> None:
        """Note the dimensions that `weight` is contracted over or looked up by, and those of its outputs."""
        self.weights.append(weight)
        for record, dims in ((self.read, reads), (self.written, writes)):
            for factor in (dim[0] for dim in dims if dim):
                record[factor].add(weight)

    def _note_slice(self, whole: Product, piece: Product) -> None:
        if piece:
            self.slices.append((whole, piece))
        else:
            self.marked["indexed"].append(whole)

    def _note_lookup(self, result: Value, rule: Rule, table: Array, letters: dict[int, Product]) -> None:
        if table.weight and not _is_slice(rule):
            rows = [letters[letter] for letter in sorted(rule.summed)]
            columns = set(chain(*rule.inputs[0])) - rule.summed.union(*rule.inputs[1])
            self._note_weight(table.weight, reads=rows, writes=_only(table, rule.inputs[0], columns))
            self.marked["rows"].extend(rows)
            if len(rows) == 1 and len(columns) > 1:
                counts = frozenset(_only(self.array(result), rule.outputs[0], {*chain(*rule.inputs[1])}))
                self.arrays[result] = self.array(result)._replace(
                    lookup=Lookup(table.weight, rows[0], counts)
                )

    def _note_product(
        self, operation: Operation, rule: Rule, arrays: Sequence[Array], letters: dict[int, Product]
    ) -> None:
        """Note the contracted and the batch dimensions of a matrix product.

        A convolution only has a kernel.
        """
        on_left, on_right, outputs = (set(chain(*dims)) for dims in (*rule.inputs[:2], rule.outputs[0]))
        contracted, groups = rule.summed & on_left & on_right, rule.summed & on_right - on_left
        batch, is_convolution = (
            on_left & on_right & outputs,
            operation.primitive.product == "convolution",
        )
        self.marked["experts"].extend(letters[letter] for letter in groups)
        if is_convolution and not contracted:
            return
        sides = list(zip(arrays[:2], rule.inputs[:2], strict=True))
        weights = [_as_weight(array, dims, batch) for array, dims in sides]
        factors = list(zip(sides, weights, reversed(weights), strict=True))
        for (array, dims), (weight, experts), (other, _) in factors[is_convolution:]:
            if weight and not other:
                reads = _only(array, dims, contracted)
                writes = _only(array, dims, {*chain(*dims)} - contracted - batch - groups)
                self._note_weight(weight, reads=reads, writes=writes)
                self.marked["experts"].extend(experts)
                self.together.extend((reads[0], rest) for rest in reads[1:])
                if is_convolution:
                    self.convolutions.add(weight)
        if not any(weight for weight, _ in weights) and not is_convolution:
            self.marked["inner"].extend(letters[letter] for letter in contracted)
            self.marked["outer"].extend(letters[letter] for letter in batch)


def _as_weight(array: Array, dims: Dims, batch: Set[int]) -> tuple[str | None, list[Product]]:
    """Return the parameter that a factor of a product is, and its dimensions that count experts.

    A matrix may be looked up for each of some rows, as that of their expert.
    """
    of_batch = _only(array, dims, batch)
    if array.lookup is not None and array.lookup.counts <= set(of_batch):
        return array.lookup.weight, [array.lookup.rows]
    return array.weight, of_batch


def _only(array: Array, dims: Dims, letters: Set[int]) -> list[Product]:
    """Return the dimensions of an array that have some of `letters`."""
    return [product for product, dim in zip(array.dims, dims, strict=True) if not letters.isdisjoint(dim)]


def _weight(operation: Operation, arrays: Sequence[Array]) -> str | None:
    """Return the parameter that the results are: the largest, if all operands but scalars are parameters."""
    if not any(array.weight for array in arrays) or operation.primitive.product:
        return None
    if operation.is_lookup:
        return arrays[0].weight if _is_slice(operation.rule) else None
    sized = [(math.prod(x.shape), array) for x, array in zip(operation.inputs, arrays, strict=True)]
    sized = [(size, array) for size, array in sized if array.dims] or sized
    is_weight = all(array.weight for _, array in sized)
    return max(sized, key=itemgetter(0))[1].weight if is_weight else None


def _is_slice(rule: Rule) -> bool:
    """Return whether a lookup is of a single place, such as the i-th layer."""
    return len(rule.inputs[1]) == 1


def _is_alike(operation: Operation, body: Program) -> bool:
    shapes = [[value.shape for value in values] for values in (body.inputs, body.outputs)]
    return shapes == [[value.shape for value in values] for values in (operation.inputs, operation.outputs)]
