"""The order in which a device runs the operations of a program, which is not the order of the jaxpr.

Products and loops run depth first from the results; of an operation's operands, the end of the longest
chain comes first. This is roughly `DFSMemoryScheduler` in XLA's
xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc. So a layer's backward pass first makes the values
that the layer before it waits for. The gradients of its weights come last, and until then the factors of
those products stay in memory.

All other operations run as soon as possible, since XLA fuses operations that read the same arrays. Those of
constants alone, such as zeros to add to, run when their results are first read.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from meshwright.plan._estimate._buffers import is_whole
from meshwright.program._internal import Operation, Program, Value

Needed = dict[Operation, list[Operation]]
"""For each operation, the operations that make its operands."""


def scheduled(program: Program) -> Program:
    """Return the program with its operations in the order of their execution; bodies are left as they are."""
    makers = {value: operation for operation in program.operations for value in operation.outputs}
    needed = {
        operation: list(dict.fromkeys(makers[value] for value in operation.inputs if value in makers))
        for operation in program.operations
    }
    results = [makers[value] for value in program.outputs if value in makers]
    # Operations with only a side effect lead to no result.
    order = _depth_first([*results, *program.operations], needed)
    constant = _constant(program, makers)
    varying = {x: [y for y in needed[x] if y not in constant] for x in order if x not in constant}
    return replace(program, operations=_when_read(_at_once(list(varying), varying), needed))


def _constant(program: Program, makers: Mapping[Value, Operation]) -> set[Operation]:
    """Return the operations whose results depend on no input."""
    constant, inputs = set[Operation](), set(program.inputs)
    for operation in program.operations:
        is_alone = all(makers[x] in constant if x in makers else x not in inputs for x in operation.inputs)
        if is_alone and not is_whole(operation) and not operation.eqn.effects:
            constant.add(operation)
    return constant


def _when_read(order: Iterable[Operation], needed: Needed) -> list[Operation]:
    """Insert the operations that are missing in `order`, each just before the first that needs it."""
    complete: dict[Operation, None] = {}

    def add(operation: Operation) -> None:
        for x in needed[operation]:
            if x not in complete:
                add(x)
        complete[operation] = None

    for operation in order:
        add(operation)
    return list(complete)


def _depth_first(results: Iterable[Operation], needed: Needed) -> list[Operation]:
    lengths: dict[Operation, int] = {}
    for operation, operands in needed.items():
        lengths[operation] = 1 + max((lengths[x] for x in operands), default=0)

    def longest_first(operation: Operation) -> Iterator[Operation]:
        operands = needed[operation]
        return iter(operands if len(operands) < 2 else sorted(operands, key=lambda x: -lengths[x]))

    order: dict[Operation, None] = {}
    for result in results:
        path = [(result, longest_first(result))]
        while path:
            operation, operands = path[-1]
            if following := next((x for x in operands if x not in order), None):
                path.append((following, longest_first(following)))
            else:
                order[operation] = None
                path.pop()
    return list(order)


def _at_once(order: list[Operation], needed: Needed) -> list[Operation]:
    """Move each operation that may be fused to just after its last operand, or to the start if none."""
    readers: Needed = defaultdict(list)
    for operation, operands in needed.items():
        for x in operands:
            readers[x].append(operation)
    missing = {operation: len(operands) for operation, operands in needed.items()}
    fused: list[Operation] = []
    fused_at_start = [x for x in order if not needed[x] and not is_whole(x)]
    for start in (*fused_at_start, *filter(is_whole, order)):
        ready = [start]
        while ready:
            fused.append(ready.pop())
            for x in readers[fused[-1]]:
                missing[x] -= 1
                if not missing[x] and not is_whole(x):
                    ready.append(x)
    return fused
