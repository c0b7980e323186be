"""The computations of a compiled program that run, and how often.

Programs for CPUs and GPUs state the number of iterations of a loop. Programs for TPUs do not, and it is
inferred: the condition compares a counter, an element of the tuple that the loop carries, with a constant,
and the body adds another constant to it.

    %condition (c) -> pred[] {                            %body (b) -> (s32[], …) {
      %limit = s32[] constant(6)                            %step = s32[] constant(2)
      %i = s32[] get-tuple-element(%c), index=0             %i = s32[] get-tuple-element(%b), index=0
      ROOT %lt = pred[] compare(%i, %limit), direction=LT   %next = s32[] add(%i, %step)
    }                                                       ROOT %t = (s32[], …) tuple(%next, …) }

Loops over the layers of a model count from 0 by 1. Loops that multiply a matrix while the rest of it arrives
(windowed einsums) may count by 2, two pieces per iteration.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from meshwright.program._hlo._program import Computation, Instruction, Program, nbytes, root_of

_SELDOM = "/seldom/"
"""Scope of a condition that seldom does the larger part of its work, as in the estimates of a plan."""
KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Execution(NamedTuple):
    """A computation that runs."""

    computation: Computation
    times: int
    """Number of executions in one step, with the iterations of all enclosing loops."""
    in_open_loop: bool
    """True if an enclosing loop has an unknown number of iterations; `times` then counts one iteration."""


def executions(program: Program) -> Iterator[Execution]:
    """Yield the entry computation and all that it calls, without the insides of fusions.

    Of a condition's branches only the one that makes most bytes is included; of a condition in a
    `jax.named_scope("seldom")`, such as the further rounds of `mw.nn.moe`, the one that makes least.
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
    """Return the computations that an instruction runs, each with its number of runs, None if not known."""
    if op.opcode == "while":
        trips = trip_count(program, computation, op)
        return [(op.attribute(name) or "", trips) for name in ("condition", "body")]
    if op.opcode == "conditional":
        usual = min if _SELDOM in op.source else max
        return [(usual(_branches(op), key=lambda name: _bytes_made(program, name)), 1)]
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
    return sum(x.times * sum(nbytes(op.type) for op in x.computation.values()) for x in inner)


def trip_count(program: Program, caller: Computation, loop: Instruction) -> int | None:
    """Return the iterations of `loop`, an instruction of `caller`; None without a constant limit."""
    if match := KNOWN_TRIPS.search(loop.attributes):
        return int(match[1])
    condition, body = (program.computations[loop.attribute(name) or ""] for name in ("condition", "body"))
    test = root_of(condition)
    if test.opcode != "compare" or test.attribute("direction") not in ("LT", "GT"):
        return None
    counter, limit = (condition[name] for name in test.operands[:: 1 if "=LT" in test.attributes else -1])
    of_loop = _Loop(caller, caller[loop.operands[0]], body)
    return of_loop.turns(counter, of_loop.constant(limit, condition))


class _Loop(NamedTuple):
    caller: Computation
    carried: Instruction
    """The tuple that the loop starts with."""
    body: Computation

    def turns(self, counter: Instruction, limit: int | None) -> int | None:
        """Return the number of iterations in which a counter, from 0 if unknown, is below `limit`."""
        step = self.step(counter) if counter.opcode == "get-tuple-element" else None
        if step is None or step < 1 or limit is None:
            return None
        return max(0, -(-(limit - (self.start(counter) or 0)) // step))

    def constant(self, op: Instruction, within: Computation) -> int | None:
        """Return the value of an instruction of the loop, if it is the same constant in every iteration."""
        op = _original(op, within)
        is_kept = op.opcode == "get-tuple-element" and _is_element(self.next_value(op), op)
        return self.start(op) if is_kept else _literal(op)

    def start(self, element: Instruction) -> int | None:
        """Return the value of a carried element before the first iteration."""
        return _literal(_original(_element(element, self.carried, self.caller), self.caller))

    def next_value(self, element: Instruction) -> Instruction:
        """Return the instruction that makes a carried element for the next iteration."""
        return _original(_element(element, root_of(self.body), self.body), self.body)

    def step(self, element: Instruction) -> int | None:
        """Return the constant that an iteration adds to a carried element; None if it does something else."""
        op, step = self.next_value(element), 0
        while op.opcode == "add":
            terms = [(self.constant(self.body[name], self.body), name) for name in op.operands]
            (constant, _), (unknown, other) = sorted(terms, key=lambda term: term[0] is None)
            if constant is None or unknown is not None:
                return None
            op, step = _original(self.body[other], self.body), step + constant
        return step if _is_element(op, element) else None


def _original(op: Instruction, within: Computation) -> Instruction:
    while op.opcode in ("copy", "bitcast"):
        op = within[op.operands[0]]
    return op


def _literal(op: Instruction) -> int | None:
    is_integer = op.opcode == "constant" and re.fullmatch(r"-?\d+", op.literal)
    return int(op.literal) if is_integer else None


def _element(element: Instruction, tuple_: Instruction, within: Computation) -> Instruction:
    return within[tuple_.operands[_index(element)]] if tuple_.opcode == "tuple" else tuple_


def _is_element(op: Instruction, element: Instruction) -> bool:
    return op.opcode == "get-tuple-element" and _index(op) == _index(element)


def _index(element: Instruction) -> int:
    return int(element.attribute("index") or 0)
