"""Which values of a program are ever in memory, as XLA fuses operations: the rest is computed on the way.

An elementwise result that only elementwise operations and reductions read is never written. What matrix
products, loops, lookups and exchanges read or make is.
"""

from collections.abc import Iterable

from meshwright.plan._program import Operation, Program, Value

_ALIASES = (
    "reshape",
    "squeeze",
    "expand_dims",
    "transpose",
    "optimization_barrier",
    "sharding_constraint",
    "copy",
)
"""Their results are their operands, seen otherwise; a matrix product reads transposed ones as they are."""
_WHOLE = {
    *("dot_general", "ragged_dot_general", "conv_general_dilated", "scatter", "scatter-add", "scatter_add"),
    *("sort", "top_k", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "reduce_window", "fft"),
    *("cholesky", "triangular_solve", "lu", "qr", "eigh", "svd", "pallas_call", "ffi_call", "shard_map"),
    *("scan", "while", "cond", "random_bits", "dynamic_update_slice"),
}
"""Operations that nothing is fused into."""


class Buffers:
    """The values of a program, without its bodies, that are in memory."""

    def __init__(self, program: Program, kept: Iterable[Value], exchanged: Iterable[Value]) -> None:
        """`kept` are those of its results that stay in memory; `exchanged` what devices send each other."""
        self.program = program
        self._root: dict[Value, Value] = {}
        for operation in program.operations:
            if is_alias(operation):
                self._root[operation.outputs[0]] = self.root(operation.inputs[0])
        self.held = {self.root(value) for value in (*program.inputs, *kept, *exchanged)}
        for operation in program.operations:
            if is_whole(operation):
                self.held.update(map(self.root, operation.values))
            elif operation.kind.startswith(("reduce_", "gather", "arg")):
                self.held.update(operation.outputs)
        self._read = self._sources()

    def root(self, value: Value) -> Value:
        """Return the value in whose memory a value is."""
        return self._root.get(value, value)

    def sources(self, operation: Operation) -> set[Value]:
        """Return what is read from memory to make the results of an operation."""
        return set().union(*(self._read[value] for value in operation.inputs))

    def makes(self, operation: Operation) -> list[Value]:
        """Return those of the results of an operation that get memory of their own."""
        return [x for x in operation.outputs if x in self.held and self.root(x) is x]

    def last_uses(self, kept: Iterable[Value]) -> dict[Value, int]:
        """Return for each value in memory the number of the last operation that reads it."""
        end = len(self.program.operations)
        last = {self.root(value): end for value in kept}
        for i, operation in enumerate(self.program.operations):
            if is_whole(operation) or self.makes(operation):
                for value in self.sources(operation):
                    last[value] = max(last.get(value, 0), i)
        return last

    def _sources(self) -> dict[Value, set[Value]]:
        class Found(dict[Value, set[Value]]):
            def __missing__(self, value: Value) -> set[Value]:
                return {value} if value in held else set()

        held, found = self.held, Found()
        for operation in self.program.operations:
            read = set().union(*(found[value] for value in operation.inputs))
            for value in operation.outputs:
                if self.root(value) in held:
                    found[value] = {self.root(value)}
                else:
                    found[value] = read
        return found


def is_alias(operation: Operation) -> bool:
    return operation.kind in _ALIASES and len(operation.outputs) == 1


def is_whole(operation: Operation) -> bool:
    return operation.kind in _WHOLE
