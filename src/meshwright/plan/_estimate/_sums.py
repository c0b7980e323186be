"""Sums over devices that are yet to be made.

Each is put off until others that it is added to are made, too, as XLA does; what a loop adds up is summed
after it.
"""

from collections import Counter
from typing import NamedTuple

from meshwright.plan._estimate._propagation import Propagation, Spec
from meshwright.program import Operation, Program, Value

_ADDITIONS = ("add", "add_any")
_PASSING = ("convert_element_type", "reshape", "sharding_constraint", "squeeze", "transpose")


class Sum(NamedTuple):
    """A sum over devices."""

    axes: tuple[str, ...]
    nbytes: int
    source: str


class PendingSums:
    """The sums of a program that are put off, by the values that they make."""

    def __init__(self, specs: Propagation) -> None:
        self._specs = specs
        self._uses: Counter[Value] = Counter()
        self._pending: dict[Value, Sum] = {}
        self._carried: dict[Value, Value] = {}
        """For what loops carry from turn to turn, what it was in the turn before."""

    def __setitem__(self, value: Value, put_off: Sum) -> None:
        """Put off the sum that makes a value."""
        self._pending[value] = put_off

    def pop(self, value: Value) -> Sum | None:
        """Return the sum that is to make a value, which is not put off any longer; None if there is none."""
        return self._pending.pop(value, None)

    def meet(self, program: Program) -> None:
        """Count who reads the values of a program that is about to be looked at."""
        self._uses.update(x for operation in program.operations for x in operation.inputs)
        self._uses.update(program.outputs)

    def enter(self, loop: Operation) -> None:
        """Note what a loop carries."""
        self._carried |= {tie.source: tie.target for tie in loop.carried}

    def leave(self, value: Value, outside: Value) -> None:
        """Go on outside of a loop with the sum of a value that is but carried to its next turn."""
        if value in self._pending and value in self._carried and self._uses[value] == 1:
            self._pending[outside] = self._pending.pop(value)

    def put_off_by(self, operation: Operation) -> bool:
        """Go on with the sums of operands as one of the result, and return whether that can be done."""
        if operation.kind not in (*_ADDITIONS, *_PASSING) or any(self._uses[x] > 1 for x in operation.inputs):
            return False
        result = operation.outputs[0]
        pending = {x: self._pending[x] for x in operation.inputs if x in self._pending}
        is_alike = len({(each.axes, each.nbytes) for each in pending.values()}) == 1
        is_alone = all(x in pending or self._carried.get(result) is x for x in operation.inputs)
        split = {_axes(self._specs.spec(x)) for x in (*pending, result)}
        if not (is_alike and is_alone and len(split) == 1):
            return False
        self._pending[result] = max(self._pending.pop(x) for x in pending)
        return True

    def is_scattered(self, value: Value, axes: tuple[str, ...], wanted: Spec) -> bool:
        """Return whether all that reads a sum over `axes` wants the parts that these make."""
        return _axes(wanted) == _axes(self._specs.spec(value)).union(axes) and self._uses[value] == 1


def _axes(spec: Spec) -> frozenset[str]:
    return frozenset(axis for dim in spec for axis in dim)
