"""How much memory a program takes at its fullest moment, by what it is for.

A value is there from the operation that makes it to the last that reads it. A loop adds its body's own peak.
"""

from collections import Counter
from collections.abc import Mapping

from meshwright.plan._buffers import Buffers, is_whole
from meshwright.plan._program import Operation, Program, Value
from meshwright.plan._propagation import Propagation
from meshwright.plan._traffic import Traffic

GRADIENTS, KEPT, GATHERED, WORKSPACE = "gradients", "kept", "gathered", "workspace"


class Liveness:
    """The memory of programs whose values are split over a mesh."""

    def __init__(self, specs: Propagation, traffic: Traffic) -> None:
        self._specs, self._traffic = specs, traffic
        self.passed_nbytes = 0
        """Bytes read and written by what is not a matrix product nor a loop, in all."""

    def peak(self, program: Program, *, kept: list[Value], times: int = 1) -> Counter[str]:
        """Return the bytes at the fullest moment, by use; without those of the inputs.

        Args:
          kept: the results that get memory of their own.
          times: how often the program runs, for `passed_nbytes`.
        """
        copies = {operation: self._copies(operation) for operation in program.operations}
        exchanged = [value for of in copies.values() for value, _ in of]
        buffers = Buffers(program, kept, exchanged)
        last = buffers.last_uses(kept)
        changes = self._lifetimes(program, buffers, last)
        self._add_copies(changes, program, copies)
        return self._fullest(program, buffers, changes, times)

    def _fullest(
        self, program: Program, buffers: Buffers, changes: Mapping[int, Counter[str]], times: int
    ) -> Counter[str]:
        fullest, now = Counter[str](), Counter[str]()
        for i, operation in enumerate(program.operations):
            now.update(changes.get(2 * i, {}))
            inner = self._inside(operation, times)
            self.passed_nbytes += times * self._passed(operation, buffers)
            if sum(now.values()) + sum(inner.values()) > sum(fullest.values()):
                fullest = now + inner
            now.update(changes.get(2 * i + 1, {}))
        return fullest

    def _inside(self, operation: Operation, times: int) -> Counter[str]:
        stacked = {tie.source for tie in operation.ties if tie.target_stacked}
        bodies = [
            self.peak(body, kept=[x for x in body.outputs if x not in stacked], times=times * operation.turns)
            for body in operation.bodies
        ]
        return max(bodies, key=lambda of: sum(of.values()), default=Counter())

    def _lifetimes(
        self, program: Program, buffers: Buffers, last: Mapping[Value, int]
    ) -> dict[int, Counter[str]]:
        """Return what is added before the i-th operation (2 i) and after it (2 i + 1), in bytes by use."""
        changes: dict[int, Counter[str]] = {}
        inputs = {*program.inputs}
        ending: dict[int, list[Value]] = {}
        for i, operation in enumerate(program.operations):
            for value in buffers.makes(operation):
                end = last.get(value, i)
                nbytes = self._specs.nbytes(value)
                use = _use(program, i, end)
                start = 2 * i + (1 if self._in_place(operation, value, ending.get(i, [])) else 0)
                _change(changes, start, use, nbytes)
                _change(changes, 2 * end + 1, use, -nbytes)
                if value not in inputs:
                    ending.setdefault(end, []).append(value)
        return changes

    def _in_place(self, operation: Operation, value: Value, ending: list[Value]) -> bool:
        """Whether a result takes the memory of an operand that nothing reads any more."""
        if is_whole(operation) and not operation.bodies:
            return operation.kind.startswith(("scatter", "dynamic_update"))
        nbytes = self._specs.nbytes(value)
        if any(tie.target is value and tie.target_stacked for tie in operation.ties):
            return False
        for old in ending:
            if self._specs.nbytes(old) == nbytes and (not operation.bodies or old in operation.inputs):
                ending.remove(old)
                return True
        return False

    def _copies(self, operation: Operation) -> list[tuple[Value, int]]:
        return self._traffic.copies.get(operation, [])

    def _add_copies(
        self,
        changes: dict[int, Counter[str]],
        program: Program,
        copies: Mapping[Operation, list[tuple[Value, int]]],
    ) -> None:
        """A gathered operand stays until its last use."""
        first: dict[Value, tuple[int, int]] = {}
        for i, operation in enumerate(program.operations):
            for value, nbytes in copies[operation]:
                first.setdefault(value, (i, nbytes))
        for value, (start, nbytes) in first.items():
            end = max(i for i, of in enumerate(program.operations) if any(v is value for v in of.inputs))
            _change(changes, 2 * start, GATHERED, nbytes)
            _change(changes, 2 * end + 1, GATHERED, -nbytes)

    def _passed(self, operation: Operation, buffers: Buffers) -> int:
        made = buffers.makes(operation)
        if is_whole(operation) or not made:
            return 0
        return sum(map(self._specs.nbytes, (*made, *buffers.sources(operation))))


def _change(changes: dict[int, Counter[str]], at: int, use: str, nbytes: int) -> None:
    changes.setdefault(at, Counter())[use] += nbytes


def _use(program: Program, start: int, end: int) -> str:
    """What is made in the forward pass and read in the backward one is kept; what that makes, gradients."""
    backward = [_is_backward(program.operations[min(i, len(program.operations) - 1)]) for i in (start, end)]
    return {(False, True): KEPT, (True, False): GRADIENTS}.get(tuple(backward), WORKSPACE)  # type: ignore[call-overload]


def _is_backward(operation: Operation) -> bool:
    return "transpose(" in str(operation.eqn.source_info.name_stack)
