"""What of a compiled program is run, and how often."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from meshwright.hlo._program import Computation, Instruction, Program, nbytes
from meshwright.hlo._trips import trip_count


class Execution(NamedTuple):
    """A computation that is run."""

    computation: Computation
    times: int
    """In one step, the turns of all loops around it multiplied."""
    in_open_loop: bool
    """Of some loop around it the number of turns is not known; `times` is for one."""


def executions(program: Program) -> Iterator[Execution]:
    """Yield the entry and what it calls, each as often as it is called; what is inside of fusions is not.

    Of the branches of a condition only the one that makes the most bytes.
    """
    return _called(program, Execution(program.computations[program.entry], 1, False))


def _called(program: Program, caller: Execution) -> Iterator[Execution]:
    yield caller
    for op in caller.computation.values():
        for name, trips in _calls(program, caller.computation, op):
            is_open = caller.in_open_loop or trips is None
            times = caller.times * (1 if trips is None else trips)
            yield from _called(program, Execution(program.computations[name], times, is_open))


def _calls(program: Program, computation: Computation, op: Instruction) -> list[tuple[str, int | None]]:
    """Return the computations that an instruction runs, and how often: None, where that is not known."""
    if op.opcode == "while":
        trips = trip_count(program, computation, op)
        return [(op.attribute(name) or "", trips) for name in ("condition", "body")]
    if op.opcode == "conditional":
        return [(max(_branches(op), key=lambda name: _bytes_made(program, name)), 1)]
    if op.opcode in ("call", "async-start"):
        return [(op.attribute("to_apply") or op.attribute("calls") or "", 1)]
    return []


def _branches(op: Instruction) -> list[str]:
    listed = re.search(r"branch_computations=\{([^}]*)\}", op.attributes)
    if listed:
        return [name.strip(" %") for name in listed[1].split(",")]
    return [op.attribute(f"{which}_computation") or "" for which in ("true", "false")]


def _bytes_made(program: Program, name: str) -> int:
    inner = _called(program, Execution(program.computations[name], 1, False))
    return sum(each.times * sum(nbytes(op.type) for op in each.computation.values()) for each in inner)
