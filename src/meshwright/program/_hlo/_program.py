"""A compiled program, read from its HLO text.

    %fused_computation.1 (…) -> f32[8] {                      a computation
      ROOT %add.1 = f32[8]{0} add(%p.0, %p.1), metadata={op_name="jit(step)/add"}
    }
    ENTRY %main (…) -> f32[8] { … }                           the computation that runs first

JAX shows this text of a program; it is the program of one device. The grammar is that of XLA's
`hlo_parser.cc`.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_COLLECTIVE = re.compile(
    r"(?:nccl\w*?_)?((?:ragged-)?all-?to-?all|all-?reduce|all-?gather|reduce-?scatter|sendrecv"
    r"|collective-?permute|collective-?broadcast)",
    re.IGNORECASE,
)

HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<type>.+?) (?P<opcode>[a-z][\w-]*)\((?P<rest>.*)$"
)
END_OF_OPERANDS = re.compile(r"\)(?=, [\w-]+=|$)")
QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
NAME = re.compile(r"%([\w.-]+)")
ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([^\]]*)\](\{[^}]*\})?")
SPACE = re.compile(r"S\((\d+)\)")
NUM_PARTITIONS = re.compile(r"^HloModule .*\bnum_partitions=(\d+)", re.MULTILINE)

FUSIONS = ("fusion", "fusion-start")


class Instruction(NamedTuple):
    """A line of a computation."""

    name: str
    type: str
    """Type as written: `f32[8,128]{1,0}`, or a tuple of types in parentheses."""
    opcode: str
    operands: tuple[str, ...]
    literal: str
    """Text between the parentheses: the value of a constant, the number of a parameter."""
    attributes: str
    is_root: bool

    @property
    def source(self) -> str:
        """Operation of the traced function that it comes from; "" if the text does not say."""
        match = re.search(r'op_name="(.*?)"', self.attributes)
        return match[1].replace("\\'", "'") if match else ""

    @property
    def mentions(self) -> list[str]:
        """Names of operands, of computations, and of instructions that must run before."""
        return [*self.operands, *NAME.findall(QUOTED.sub("", self.attributes))]

    def attribute(self, name: str) -> str | None:
        """Return an attribute that is one word: the name of a computation, or a number."""
        match = re.search(rf"\b{name}=%?([\w.-]+)", self.attributes)
        return match and match[1]


Computation = Mapping[str, Instruction]
"""Instructions by name; operands come before the instructions that use them."""


class Program(NamedTuple):
    """Computations by name, with the entry computation."""

    computations: Mapping[str, Computation]
    entry: str
    num_partitions: int

    def fused(self, op: Instruction) -> Computation:
        """Return the computation inside a fusion, which runs as one; empty for other instructions."""
        return self.computations[op.attribute("calls") or ""] if op.opcode in FUSIONS else {}


def parse(hlo: str) -> Program:
    """Return the program that an HLO text describes."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, inside = "", {}
    for line in hlo.splitlines():
        if match := INSTRUCTION.match(line):
            inside[match["name"]] = _instruction(match)
        elif header := HEADER.match(line):
            inside = computations[header["name"]] = {}
            entry = header["name"] if header["entry"] else entry
    partitions = NUM_PARTITIONS.search(hlo)
    return Program(computations, entry, int(partitions[1]) if partitions else 1)


def root_of(computation: Computation) -> Instruction:
    """Return the instruction that makes the result of a computation."""
    return next(op for op in computation.values() if op.is_root)


def arrays(type_: str) -> Iterator[tuple[tuple[int, ...], int, str]]:
    """Yield the shape, the bits of an element and the layout of each array in a type.

    The bits are those in the name: `bf16`, `f8e4m3fn`, `s4`, `c64`. A `pred` has 8 bits, a `token` none.
    """
    for letters, digits, sizes, layout in ARRAY.findall(type_):
        shape = tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size)
        yield shape, int(digits or 8 * (letters == "pred")), layout


def nbytes(type_: str) -> int:
    """Return the bytes of all arrays in a type."""
    return sum(math.prod(shape) * bits // 8 for shape, bits, _ in arrays(type_))


def memory_bytes(type_: str) -> int:
    """Return the bytes of the arrays in a type that are in the device's memory.

    Memory space 5 is the host's memory. On TPUs, whose layouts have tiles, `{1,0:T(8,128)S(1)}`, all spaces
    but 0 are on the chip. On GPUs space 1 is for NCCL, in device memory.
    """
    return sum(math.prod(shape) * bits // 8 for shape, bits, layout in arrays(type_) if _is_in_memory(layout))


def _is_in_memory(layout: str) -> bool:
    space = SPACE.search(layout)
    return space is None or (space[1] != "5" and "T(" not in layout)


def _instruction(match: re.Match[str]) -> Instruction:
    rest = match["rest"]
    end = END_OF_OPERANDS.search(rest)
    literal, attributes = (rest[: end.start()], rest[end.end() :]) if end else (rest, "")
    operands = tuple(NAME.findall(literal))
    root = match["root"] is not None
    return Instruction(match["name"], match["type"], match["opcode"], operands, literal, attributes, root)


def collective_of(name: str) -> str | None:
    """Return the kind of collective that an operation's name denotes, such as `all-reduce`, or None.

    Example:
      >>> mw.program._internal.collective_of("all-reduce.12")
      'all-reduce'
    """
    match = _COLLECTIVE.match(name)
    return match and re.sub(r"(?<=[a-z])(?=[A-Z])", "-", match[1]).lower()
