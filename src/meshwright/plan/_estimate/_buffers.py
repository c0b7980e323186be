"""The values of a program that are stored in memory after XLA has fused operations.

An elementwise result that only elementwise operations and reductions read is not stored: it is computed
where it is read. What takes long to compute is stored if both passes read it. Inputs and outputs of matrix
products, loops, lookups and collectives are stored.
"""

from collections import Counter
from collections.abc import Container, Iterable

from meshwright.program._internal import Algebra, Memory, Operation, Program, Value


class Buffers:
    """The stored values of a program, without those of its loop bodies."""

    def __init__(
        self,
        program: Program,
        results: list[Value],
        exchanged: Iterable[Value],
        carried: Container[Value] = (),
    ) -> None:
        """Find the stored values."""
        self._program = program
        self._roots: dict[Value, Value] = {}
        exchanged = set(exchanged)
        for operation in program.operations:
            if _is_view(operation, exchanged) and len(operation.outputs) == 1:
                self._roots[operation.outputs[0]] = self.root(operation.inputs[0])
        self._stored = set(map(self.root, (*program.inputs, *results, *exchanged)))
        for operation in program.operations:
            memory = operation.primitive.memory
            if memory.is_whole:
                self._stored.update(map(self.root, operation.values))
            elif memory in (Memory.STORED, Memory.REDUCED):
                self._stored.update(operation.outputs)
        self._stored |= _costly(program)
        self._stored -= _added(program, carried)
        self._read: dict[Value, set[Value]] = {}
        self._reduced: set[Value] = set()
        for operation in program.operations:
            read = self.sources(operation)
            if operation.primitive.memory is Memory.REDUCED:
                self._reduced |= read
            for value in operation.outputs:
                if self.root(value) not in self._stored:
                    self._read[value] = read

    def sources(self, operation: Operation) -> set[Value]:
        """Return the stored values that an operation reads, directly or through fused operations."""
        values: set[Value] = set()
        for value in operation.inputs:
            root = self._roots.get(value, value)
            if root in self._stored:
                values.add(root)
            elif value in self._read:
                values |= self._read[value]
        return values

    def replaceable(self, operation: Operation) -> set[Value]:
        """Return the stored values that an operation's results may overwrite, if nothing reads them later.

        A value that a reduction also reads is excluded. XLA fuses the reduction with this operation (a
        softmax, a norm, a mean), and a fused operation cannot overwrite a value that it reads twice.
        """
        return self.sources(operation) - self._reduced

    def makes(self, operation: Operation) -> list[Value]:
        """Return the results of an operation that get memory of their own."""
        return [x for x in operation.outputs if x in self._stored and self.root(x) is x]

    def last_reads(self, results: Iterable[Value]) -> dict[Value, int]:
        """Return for each stored value the index of the last operation that reads it."""
        last = {}
        for i, operation in enumerate(self._program.operations):
            if is_whole(operation) or self.makes(operation):
                last.update(dict.fromkeys(self.sources(operation), i))
        return last | dict.fromkeys(map(self.root, results), len(self._program.operations))

    def root(self, value: Value) -> Value:
        """Return the value whose memory a value shares."""
        return self._roots.get(value, value)


def _is_view(operation: Operation, exchanged: Container[Value]) -> bool:
    """Return whether the result of an operation is in the memory of its operand."""
    # A constraint changes nothing where the operand is split like that already.
    if operation.is_constraint:
        return operation.outputs[0] not in exchanged
    return operation.primitive.memory is Memory.VIEW


def _added(program: Program, carried: Container[Value]) -> set[Value]:
    """Return the results of products that a loop only adds to what it carries.

    They are not stored: the product writes the sum.
    """
    uses = Counter(x for operation in program.operations for x in operation.inputs)
    uses.update(program.outputs)
    makers = (x for x in program.operations if x.primitive.work)
    products = {value for maker in makers for value in maker.outputs if uses[value] == 1}
    sums = (x for x in program.operations if x.primitive.algebra is Algebra.ADDED)
    to_carry = (x for x in sums if any(value in carried for value in x.inputs))
    return products.intersection(value for operation in to_carry for value in operation.inputs)


def _costly(program: Program) -> set[Value]:
    """Return the results of the forward pass that the backward pass reads and that take long to compute."""
    read_again = {value for x in program.operations if x.is_backward for value in x.inputs}
    return {
        value
        for operation in program.operations
        for value in operation.outputs
        if value in read_again and not operation.is_backward and _is_costly(operation)
    }


def _is_costly(operation: Operation) -> bool:
    memory, itemsize = operation.primitive.memory, operation.outputs[0].itemsize
    return memory is Memory.COSTLY or (memory is Memory.COSTLY_NARROW and itemsize < 4)


def is_whole(operation: Operation) -> bool:
    """Return whether XLA fuses nothing into an operation."""
    return operation.primitive.memory.is_whole
