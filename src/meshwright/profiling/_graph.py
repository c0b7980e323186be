"""The graph of a compiled program, from its HLO text, in DOT, which Graphviz draws.

    %fused_computation.1 (…) -> f32[8] {                      a computation
      ROOT %add.1 = f32[8]{0} add(%p.0, %p.1), metadata={op_name="jit(step)/add"}
    }
    ENTRY %main (…) -> f32[8] { … }                           the last one, where it starts

The text is what JAX shows of a program. XLA's own drawing is had by private names only, shows the inside of
every fusion, and loads a font from the network.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.profiling._measure import collective_of

COMPUTATION = re.compile(r"(?:ENTRY )?%(?P<name>[\w.-]+) \(.*\{$")
INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%(?P<name>[\w.-]+) = (?P<shape>.+?) (?P<opcode>[a-z][\w-]*)\((?P<rest>.*)$"
)
QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
LAYOUT = re.compile(r"\{[^}]*\}|/\*.*?\*/")

PLUMBING = {"bitcast", "constant", "get-tuple-element", "tuple"}
"""Operations that are not drawn: edges go through them."""
CALLING = {"async-start", "call", "conditional", "while"}
"""Those whose computations are drawn beside them; that of a fusion is not, as a fusion runs as one."""
COLORS = {
    "parameter": "#eeeeee",
    "fusion": "#d9e8f6",
    "dot": "#ffe3b3",
    "convolution": "#ffe3b3",
    "custom-call": "#ffe3b3",
    "while": "#e4d9f2",
    "conditional": "#e4d9f2",
}
COLLECTIVE_COLOR = "#f6c6c6"


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    mentions: Sequence[str]
    """The names of operations and computations in it."""
    source: str
    """Which operation of the traced function it comes from; "" where it does not say."""


def to_dot(hlo: str) -> tuple[str, int]:
    """Return the graph of a program and its number of nodes."""
    computations = {name: list(ops) for name, ops in _computations(hlo)}
    drawn = {name: computations[name] for name in _reached(computations)}
    num_nodes = sum(op.opcode not in PLUMBING for ops in drawn.values() for op in ops)
    style = "node [shape=box, style=filled, fillcolor=white, fontname=Helvetica, fontsize=10];"
    clusters = [line for name, ops in drawn.items() for line in _cluster(name, ops)]
    edges = [line for ops in drawn.values() for line in (*_edges(ops), *_calls(ops, drawn))]
    return "\n".join(["digraph program {", style, *clusters, *edges, "}", ""]), num_nodes


def _computations(hlo: str) -> Iterator[tuple[str, Iterator[Instruction]]]:
    """Yield each computation with its operations, in the order of the text: the entry last."""
    for block in hlo.split("\n}"):
        lines = block.splitlines()
        for number, line in enumerate(lines):
            if found := COMPUTATION.match(line):
                yield found["name"], (_op(op) for op in map(INSTRUCTION.match, lines[number + 1 :]) if op)


def _op(found: re.Match[str]) -> Instruction:
    source = re.search(r'op_name="(.*?)"', found["rest"])
    return Instruction(
        found["name"],
        LAYOUT.sub("", found["shape"]),
        found["opcode"],
        re.findall(r"%([\w.-]+)", QUOTED.sub("", found["rest"])),
        source[1].replace("\\'", "'") if source else "",
    )


def _reached(computations: Mapping[str, Sequence[Instruction]]) -> list[str]:
    """Return the entry and what is called from it, other than by fusions."""
    reached = list(computations)[-1:]
    for name in reached:  # which grows
        called = [each for op in computations[name] if op.opcode in CALLING for each in op.mentions]
        reached += [each for each in dict.fromkeys(called) if each in computations and each not in reached]
    return reached


def _cluster(name: str, ops: Sequence[Instruction]) -> Iterator[str]:
    """Yield a computation as a box with its operations in it."""
    yield f"subgraph {_quoted(f'cluster_{name}')} {{ label={_quoted(name)}; fontname=Helvetica;"
    yield from (_node(op) for op in ops if op.opcode not in PLUMBING)
    yield "}"


def _edges(ops: Sequence[Instruction]) -> Iterator[str]:
    """Yield the edges within a computation, whose operations come after their operands."""
    stand_for: dict[str, list[str]] = {}
    for op in ops:
        operands = list(dict.fromkeys(each for name in op.mentions for each in stand_for.get(name, ())))
        is_drawn = op.opcode not in PLUMBING
        stand_for[op.name] = [op.name] if is_drawn else operands
        if is_drawn:
            yield from (f"{_quoted(each)} -> {_quoted(op.name)};" for each in operands)


def _calls(ops: Sequence[Instruction], computations: Mapping[str, Sequence[Instruction]]) -> Iterator[str]:
    """Yield an edge to the beginning of each computation that an operation calls."""
    calls = [(op, name) for op in ops if op.opcode in CALLING for name in op.mentions]
    for op, name in calls:
        first = next((each for each in computations.get(name, ()) if each.opcode not in PLUMBING), None)
        if first:
            yield f"{_quoted(op.name)} -> {_quoted(first.name)} [style=dashed];"


def _node(op: Instruction) -> str:
    color = COLLECTIVE_COLOR if collective_of(op.opcode) else COLORS.get(op.opcode, "white")
    shape = textwrap.shorten(op.shape, 60, placeholder=" …")
    label, tooltip = _quoted(f"{op.name}\n{shape}"), _quoted(op.source or op.opcode)
    return f'{_quoted(op.name)} [label={label}, tooltip={tooltip}, fillcolor="{color}"];'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # the same escapes, for what stands in HLO
