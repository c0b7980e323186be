"""A compiled program, read from its HLO text.

    %fused_computation.1 (…) -> f32[8] {                      a computation
      ROOT %add.1 = f32[8]{0} add(%p.0, %p.1), metadata={op_name="jit(step)/add"}
    }
    ENTRY %main (…) -> f32[8] { … }                           where it starts

The text is what JAX shows of a program, which is what one device runs. The grammar is that of XLA's
`hlo_parser.cc`.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<type>.+?) (?P<opcode>[a-z][\w-]*)\((?P<rest>.*)$"
)
END_OF_OPERANDS = re.compile(r"\)(?=, [\w-]+=|$)")
NAME = re.compile(r"%([\w.-]+)")
ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([^\]]*)\](\{[^}]*\})?")
NUM_PARTITIONS = re.compile(r"^HloModule .*\bnum_partitions=(\d+)", re.MULTILINE)
KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')

FUSIONS = ("fusion", "fusion-start")
COUNTING = {"parameter", "get-tuple-element", "constant", "compare", "fusion", "bitcast", "copy"}
"""All that there is in the condition of a loop that counts."""


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    type: str
    """As written: `f32[8,128]{1,0}`, or a tuple of such in parentheses."""
    opcode: str
    operands: tuple[str, ...]
    literal: str
    """What is between the parentheses: the value of a constant, the number of a parameter."""
    attributes: str
    is_root: bool

    @property
    def source(self) -> str:
        """Which operation of the traced function it comes from; "" where it does not say."""
        found = re.search(r'op_name="(.*?)"', self.attributes)
        return found[1].replace("\\'", "'") if found else ""

    def attribute(self, name: str) -> str | None:
        """Return an attribute that is a word: the name of a computation, a number."""
        found = re.search(rf"\b{name}=%?([\w.-]+)", self.attributes)
        return found and found[1]


Computation = Mapping[str, Instruction]
"""Instructions by name, operands before what uses them."""


class Program(NamedTuple):
    """Computations by name, and which of them is the whole."""

    computations: Mapping[str, Computation]
    entry: str
    num_partitions: int

    def fused(self, op: Instruction) -> Computation:
        """Return what is inside of a fusion, which runs as one; of other instructions nothing."""
        return self.computations[op.attribute("calls") or ""] if op.opcode in FUSIONS else {}


class Execution(NamedTuple):
    """A computation that is run."""

    computation: Computation
    times: int
    """In one step, the turns of all loops around it multiplied."""
    in_open_loop: bool
    """Of some loop around it the number of turns is not known; `times` is for one."""


def parse(hlo: str) -> Program:
    """Return the program that an HLO text describes."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, inside = "", {}
    for line in hlo.splitlines():
        if found := INSTRUCTION.match(line):
            inside[found["name"]] = _instruction(found)
        elif header := HEADER.match(line):
            inside = computations[header["name"]] = {}
            entry = header["name"] if header["entry"] else entry
    partitions = NUM_PARTITIONS.search(hlo)
    return Program(computations, entry, int(partitions[1]) if partitions else 1)


def executions(program: Program) -> Iterator[Execution]:
    """Yield the entry and what it calls, each as often as it is called; what is inside of fusions is not.

    Of the branches of a condition only the one that makes the most bytes.
    """
    return _called(program, Execution(program.computations[program.entry], 1, False))


def root_of(computation: Computation) -> Instruction:
    """Return the instruction whose result is the computation's."""
    return next(op for op in computation.values() if op.is_root)


def arrays(type_: str) -> Iterator[tuple[tuple[int, ...], int, str]]:
    """Yield the shape, the bits of an element and the layout of each array in a type.

    Bits are those of the name: `bf16`, `f8e4m3fn`, `s4`, `c64`. A `pred` is a byte, a `token` nothing.
    """
    for letters, digits, sizes, layout in ARRAY.findall(type_):
        shape = tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)
        yield shape, int(digits or 8 * (letters == "pred")), layout


def nbytes(type_: str) -> int:
    """Return the bytes of all arrays in a type."""
    return sum(math.prod(shape) * bits // 8 for shape, bits, _ in arrays(type_))


def _instruction(found: re.Match[str]) -> Instruction:
    rest = found["rest"]
    end = END_OF_OPERANDS.search(rest)
    literal, attributes = (rest[: end.start()], rest[end.end() :]) if end else (rest, "")
    operands = tuple(NAME.findall(literal))
    root = found["root"] is not None
    return Instruction(found["name"], found["type"], found["opcode"], operands, literal, attributes, root)


def _called(program: Program, caller: Execution) -> Iterator[Execution]:
    yield caller
    for op in caller.computation.values():
        for name, trips in _calls(program, caller.computation, op):
            times, is_open = (
                caller.times * (1 if trips is None else trips),
                caller.in_open_loop or trips is None,
            )
            yield from _called(program, Execution(program.computations[name], times, is_open))


def _calls(program: Program, computation: Computation, op: Instruction) -> list[tuple[str, int | None]]:
    """Return the computations that an instruction runs, and how often: None, where that is not known."""
    if op.opcode == "while":
        trips = _trip_count(program, computation, op)
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


def _trip_count(program: Program, computation: Computation, loop: Instruction) -> int | None:
    """Return what the compiler says or, as that of TPUs does not, what the condition counts to."""
    if known := KNOWN_TRIPS.search(loop.attributes):
        return int(known[1])
    condition = program.computations[loop.attribute("condition") or ""]
    ops = list(condition.values())
    ops += [op for each in ops for op in program.fused(each).values()]
    limits = [int(op.literal) for op in ops if op.opcode == "constant" and re.fullmatch(r"-?\d+", op.literal)]
    compares = [op for op in ops if op.opcode == "compare"]
    if len(limits) != 1 or len(compares) != 1 or not {op.opcode for op in ops} <= COUNTING:
        return None
    if compares[0].attribute("direction") not in ("LT", "GT"):
        return None
    return limits[0] - _start(condition, computation, loop)


def _start(condition: Computation, computation: Computation, loop: Instruction) -> int:
    """Return the constant that the counter of a loop starts from; 0 where it is none."""
    counters = [op for op in condition.values() if op.opcode == "get-tuple-element"]
    carried = computation.get(loop.operands[0])
    if len(counters) != 1 or carried is None or carried.opcode != "tuple":
        return 0
    start = computation.get(carried.operands[int(counters[0].attribute("index") or 0)])
    while start is not None and start.opcode in ("copy", "bitcast"):
        start = computation.get(start.operands[0])
    return int(start.literal) if start is not None and start.opcode == "constant" else 0
