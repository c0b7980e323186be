"""The order in which a device does the operations of a program; it is not the jaxpr's.

Products and loops are done depth first from the results, and of what each needs the end of the longest chain
first: about as by `DFSMemoryScheduler` in XLA's xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc. So in
a layer's backward pass what the layer before it waits for is made first; the gradients of its weights come
last, and until then there is what they are products of.

All else is done as soon as it can be, since XLA fuses what reads the same arrays.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from meshwright.plan._estimate._buffers import is_whole
from meshwright.program import Operation, Program

Needed = dict[Operation, list[Operation]]
"""For each operation those that make its operands."""


def scheduled(program: Program) -> Program:
    """Return the program with its operations in the order in which they are done, but for those of bodies."""
    makers = {value: operation for operation in program.operations for value in operation.outputs}
    needed = {
        operation: list(dict.fromkeys(makers[value] for value in operation.inputs if value in makers))
        for operation in program.operations
    }
    results = [makers[value] for value in program.outputs if value in makers]
    # What only has an effect leads to no result.
    order = _depth_first([*results, *program.operations], needed)
    return replace(program, operations=_at_once(order, needed))


def _depth_first(results: Iterable[Operation], needed: Needed) -> list[Operation]:
    lengths: dict[Operation, int] = {}
    for operation, operands in needed.items():
        lengths[operation] = 1 + max((lengths[x] for x in operands), default=0)

    def longest_first(operation: Operation) -> Iterator[Operation]:
        return iter(sorted(needed[operation], key=lambda x: -lengths[x]))

    done: dict[Operation, None] = {}
    for result in results:
        path = [(result, longest_first(result))]
        while path:
            operation, operands = path[-1]
            if following := next((x for x in operands if x not in done), None):
                path.append((following, longest_first(following)))
            else:
                done[operation] = None
                path.pop()
    return list(done)


def _at_once(order: list[Operation], needed: Needed) -> list[Operation]:
    """Move what may be fused to where the last of its operands is made, or to the start if it has none."""
    readers: Needed = defaultdict(list)
    for operation, operands in needed.items():
        for x in operands:
            readers[x].append(operation)
    missing = {operation: len(operands) for operation, operands in needed.items()}
    done: list[Operation] = []
    fused_at_start = [x for x in order if not needed[x] and not is_whole(x)]
    for start in (*fused_at_start, *filter(is_whole, order)):
        ready = [start]
        while ready:
            done.append(ready.pop())
            for x in readers[done[-1]]:
                missing[x] -= 1
                if not missing[x] and not is_whole(x):
                    ready.append(x)
    return done
