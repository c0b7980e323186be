"""Sums over devices that are still to be made.

A sum is put off until the values that it is added to are complete, too, as XLA does. A loop that adds up
partial sums is followed by one sum over devices.
"""

from collections import Counter
from typing import NamedTuple

from meshwright.plan._estimate._propagation import Propagation, Spec
from meshwright.program._internal import Algebra, Memory, Operation, Program, Value


class Sum(NamedTuple):
    """A sum over devices."""

    axes: tuple[str, ...]
    """Mesh axes to sum over."""
    nbytes: int
    """Bytes of the array on one device."""
    source: str
    """The operation that needs it, for people."""


class PendingSums:
    """The sums of a program that are put off, by the values that they complete."""

    def __init__(self, specs: Propagation) -> None:
        self._specs = specs
        self._uses: Counter[Value] = Counter()
        self._pending: dict[Value, Sum] = {}
        self._carried: dict[Value, Value] = {}
        """For each value that a loop carries, the value that it had in the iteration before."""

    def __setitem__(self, value: Value, put_off: Sum) -> None:
        """Put off the sum that completes a value."""
        self._pending[value] = put_off

    def pop(self, value: Value) -> Sum | None:
        """Remove and return the pending sum of a value; None if it has none."""
        return self._pending.pop(value, None)

    def meet(self, program: Program) -> None:
        """Count the reads of each value of a program. Call it before the program's traffic is computed."""
        self._uses.update(x for operation in program.operations for x in operation.inputs)
        self._uses.update(program.outputs)

    def enter(self, loop: Operation) -> None:
        """Record the values that a loop carries."""
        self._carried |= {tie.source: tie.target for tie in loop.carried}

    def leave(self, value: Value, outside: Value) -> None:
        """Move a pending sum out of a loop, if its value is only carried to the next iteration."""
        if value in self._pending and value in self._carried and self._uses[value] == 1:
            self._pending[outside] = self._pending.pop(value)

    def put_off_by(self, operation: Operation) -> bool:
        """Move the pending sums of an operation's operands to its result.

        Return whether that was possible.
        """
        if not _is_passed(operation) or any(self._uses[x] > 1 for x in operation.inputs):
            return False
        result = operation.outputs[0]
        pending = {x: self._pending[x] for x in operation.inputs if x in self._pending}
        is_alike = len({(term.axes, term.nbytes) for term in pending.values()}) == 1
        is_alone = all(x in pending or self._carried.get(result) is x for x in operation.inputs)
        split = {_axes(self._specs.spec(x)) for x in (*pending, result)}
        if not (is_alike and is_alone and len(split) == 1):
            return False
        self._pending[result] = max(self._pending.pop(x) for x in pending)
        return True

    def is_scattered(self, value: Value, axes: tuple[str, ...], target: Spec) -> bool:
        """Return whether every reader of a sum over `axes` wants it split over those axes."""
        return _axes(target) == _axes(self._specs.spec(value)).union(axes) and self._uses[value] == 1


def _is_passed(operation: Operation) -> bool:
    """Return whether a sum may follow an operation as well as precede it."""
    primitive = operation.primitive
    is_view = primitive.algebra is Algebra.MOVED and primitive.memory is Memory.VIEW
    return is_view or operation.is_constraint or primitive.algebra in (Algebra.ADDED, Algebra.CAST)


def _axes(spec: Spec) -> frozenset[str]:
    return frozenset(axis for dim in spec for axis in dim)
