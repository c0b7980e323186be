"""A check that rows of a batch meet in a loss, which is then more than a mean of values of single rows.

A contrastive loss compares rows with each other, and batch normalisation takes a mean of rows from each. A
batch that is computed in pieces then has another loss than the whole. The walk of `_trace.py` tells which
dimensions count rows. Each value gets the highest of these levels that its operands lead to:

    free      it does not depend on the batch
    row       it depends on one row
    sum       it is a sum over rows, perhaps times a number or plus another sum
    quotient  it is a quotient of sums, such as a mean with weights of the batch
    met       it is any other function of several rows
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.parallel._trace import Product, Walk
from meshwright.program._internal import Algebra, Operation, Tie, Value, influences, jaxprs, program_of

APART = "rows_apart"
"""The scope of an operation of rows that sorts them only to compute each by itself, as `mw.nn.moe` does."""
_SUMS = (Algebra.SUMMED, Algebra.PRODUCT)
_FREE, _ROW, _SUM, _QUOTIENT, _MET = range(5)


def meeting(jaxpr: Any, batch: slice, results: slice) -> str:
    """Return the first operation of a program in which rows of the batch meet, by name; "" if none do."""
    program, walk = program_of(jaxpr), Walk()
    of_batch, counted = [x for x in program.inputs[batch] if x.shape], program.outputs[results]
    rows = [walk.array(value).dims[0] for value in of_batch]
    walk.run(program)
    levels = _Levels(walk, rows)
    levels.of.update(dict.fromkeys(of_batch, _ROW))
    needed = influences(program, counted)
    levels.run([operation for operation in program.operations if not needed.isdisjoint(operation.outputs)])
    return levels.first if any(levels.of[value] == _MET for value in counted) else ""


class _Levels:
    def __init__(self, walk: Walk, rows: Iterable[Product]) -> None:
        self._walk, self.of, self.first = walk, defaultdict[Value, int](int), ""
        flat = walk.factors.flat
        self._rows = {factor for product in rows for factor in flat(product)[:1]}
        pairs = [(flat(whole)[:1], flat(piece)[:1]) for whole, piece in walk.slices if piece]
        # Rows joined to others, and parts of rows, are rows.
        for _ in pairs:
            self._rows.update(*(pair[0] + pair[1] for pair in pairs if self._rows & {*pair[0], *pair[1]}))

    def run(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if operation.entering or operation.leaving:
                self._loop(operation)
            elif operation.primitive.is_same:
                self._pass(map(Tie, operation.inputs, operation.outputs))
            else:
                level = self._level(operation)
                self.first = self.first or (operation.kind if level == _MET else "")
                self.of.update(dict.fromkeys(operation.outputs, level))

    def _loop(self, loop: Operation) -> None:
        self._pass(loop.entering)
        is_new = True
        while is_new:
            for body in loop.bodies:
                self.run(body.operations)
            is_new = self._pass(loop.carried)
        self._pass(loop.leaving)

    def _pass(self, ties: Iterable[Tie]) -> bool:
        """Raise targets to the levels of their sources, and return whether one was lower."""
        lower = [tie for tie in ties if self.of[tie.target] < self.of[tie.source]]
        self.of.update({tie.target: self.of[tie.source] for tie in lower})
        return bool(lower)

    def _num_rows(self, value: Value) -> int:
        """Return how many dimensions of a value count rows."""
        return sum(map(self._counts_rows, self._walk.array(value).dims))

    def _counts_rows(self, dim: Product) -> bool:
        return not self._rows.isdisjoint(self._walk.factors.flat(dim))

    def _level(self, operation: Operation) -> int:
        primitive, levels = operation.primitive, [self.of[value] for value in operation.inputs]
        highest = max(levels, default=_FREE)
        if highest in (_FREE, _MET) or APART in operation.scope:
            return min(highest, _ROW) if APART in operation.scope else highest
        num_inputs = max(map(self._num_rows, (x for x in operation.inputs if self.of[x])))
        num_outputs = max(map(self._num_rows, operation.outputs), default=0)
        # Pairs of rows have two dimensions that count rows.
        if num_outputs > max(num_inputs, 1):
            return _MET
        if highest == _ROW:
            if num_outputs < num_inputs and primitive.algebra in (*_SUMS, Algebra.EXTREME):
                return _SUM if primitive.algebra in _SUMS else _MET
            return _MET if self._is_along_rows(operation) else _ROW
        return self._level_of_sums(operation, levels, highest)

    def _level_of_sums(self, operation: Operation, levels: Sequence[int], highest: int) -> int:
        primitive = operation.primitive
        has_rows = any(self.of[x] == _ROW and self._num_rows(x) for x in operation.inputs)
        if jaxprs.exponent_of(operation.eqn) == -1 or (
            primitive.algebra is Algebra.DIVIDED and levels[1] >= _SUM
        ):
            return _QUOTIENT
        if primitive.algebra in (Algebra.MULTIPLIED, Algebra.PRODUCT) and min(levels) > _FREE:
            return _QUOTIENT if _QUOTIENT in levels and not primitive.product else _MET
        return _MET if has_rows or primitive.algebra is Algebra.CURVED else highest

    def _is_along_rows(self, operation: Operation) -> bool:
        """Return whether an operation sorts rows or adds them up, or looks them up by values of the batch."""
        if not operation.is_lookup and operation.primitive.algebra is not Algebra.ORDERED:
            return False
        rule, (array, *indices) = operation.rule, operation.inputs
        dims = zip(rule.inputs[0], self._walk.array(array).dims, strict=True)
        of_rows = {letter for letters, dim in dims if self._counts_rows(dim) for letter in letters}
        if operation.is_lookup:
            is_row = len(rule.summed) == 1  # not x[arange(n), labels]
            return is_row and of_rows >= rule.summed and self.of[array] == self.of[indices[0]] == _ROW
        return not of_rows.isdisjoint(rule.whole)
