"""The graph of a compiled program as DOT text for Graphviz, made from its HLO text.

XLA's own drawing has private names only, shows the inside of every fusion, and loads a font from the network.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from meshwright.program._hlo._program import Instruction, Program, collective_of, parse

LAYOUT = re.compile(r"\{[^}]*\}|/\*.*?\*/")

PLUMBING = {"bitcast", "constant", "get-tuple-element", "tuple"}
"""Operations that are not drawn: edges pass through them."""
CALLING = {"async-start", "call", "conditional", "while"}
"""Operations whose computations are drawn beside them. A fusion's computation is not: it runs as one."""
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


def to_dot(hlo: str) -> tuple[str, int]:
    """Return the graph of a program as DOT text, and its number of nodes."""
    program = parse(hlo)
    drawn = {name: list(program.computations[name].values()) for name in _reached(program)}
    num_nodes = sum(op.opcode not in PLUMBING for ops in drawn.values() for op in ops)
    style = "node [shape=box, style=filled, fillcolor=white, fontname=Helvetica, fontsize=10];"
    clusters = [line for name, ops in drawn.items() for line in _cluster(name, ops)]
    edges = [line for ops in drawn.values() for line in (*_edges(ops), *_calls(ops, drawn))]
    return "\n".join(["digraph program {", style, *clusters, *edges, "}", ""]), num_nodes


def _reached(program: Program) -> list[str]:
    """Return the entry computation and all computations called from it, except by fusions."""
    reached = [program.entry]
    for name in reached:  # the loop appends to it
        ops = program.computations[name].values()
        called = dict.fromkeys(each for op in ops if op.opcode in CALLING for each in op.mentions)
        reached += [each for each in called if each in program.computations and each not in reached]
    return reached


def _cluster(name: str, ops: Sequence[Instruction]) -> Iterator[str]:
    """Yield a computation as a box that contains its operations."""
    yield f"subgraph {_quoted(f'cluster_{name}')} {{ label={_quoted(name)}; fontname=Helvetica;"
    yield from (_node(op) for op in ops if op.opcode not in PLUMBING)
    yield "}"


def _edges(ops: Sequence[Instruction]) -> Iterator[str]:
    """Yield the edges inside a computation, whose operations follow their operands."""
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
    shape = textwrap.shorten(LAYOUT.sub("", op.type), 60, placeholder=" …")
    label, tooltip = _quoted(f"{op.name}\n{shape}"), _quoted(op.source or op.opcode)
    return f'{_quoted(op.name)} [label={label}, tooltip={tooltip}, fillcolor="{color}"];'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # DOT and JSON escape the characters of HLO in the same way
