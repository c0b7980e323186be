"""A compiled program as files: its optimized HLO text, and its graph.

<directory>/<name>.hlo.txt    HLO text with every operation
<directory>/<name>.dot        the graph, without the insides of fusions
<directory>/<name>.svg        the graph as a picture, if Graphviz is installed

XLA's own drawing has private names only, shows the inside of every fusion, and loads a font from the network.
"""

import importlib
import json
import logging
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax

from meshwright.base._internal import join, put_at
from meshwright.errors import MeshwrightError, UsageError
from meshwright.program._hlo._program import Instruction, Program, collective_of, parse

# Graphviz takes a minute for so many, and the picture is metres wide.
MAX_NODES = 1500
DRAWING_SECONDS = 120

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

log = logging.getLogger("meshwright")


def save_hlo(compiled: jax.stages.Compiled, directory: str | Path, name: str = "step") -> list[str]:
    """Write a compiled program as text, as a graph and, if possible, as a picture, and return their paths.

    Operations have the same names as in profiles. Without Graphviz (`dot`, or the package pygraphviz), or if
    the graph is too large to look at, there is no picture, and a warning says why.

    Args:
      compiled: The compiled program.
      directory: A directory, made if missing, or an address such as `s3://bucket/run`.
      name: Name of the files, without their extensions.

    Raises:
      UsageError: The directory cannot be written to, or the address cannot be opened.
      MeshwrightError: This platform does not show its programs, or the store cannot be written to.

    Example:
      >>> compiled = jax.jit(jnp.sin).lower(1.0).compile()
      >>> mw.observe.save_hlo(compiled, "hlo", "sine")[:2]
      ['hlo/sine.hlo.txt', 'hlo/sine.dot']
    """
    text = compiled.as_text()
    if text is None:
        raise MeshwrightError("the compiler of these devices does not show its programs as HLO text.")
    dot, num_nodes = _graph(text)
    contents = {"hlo.txt": text, "dot": dot, "svg": _picture(dot, num_nodes)}
    files = {f"{name}.{kind}": content for kind, content in contents.items() if content}
    with put_at(directory) as folder:
        for file, content in files.items():
            _write(folder / file, content)
    return [join(directory, file) for file in files]


def _write(file: Path, content: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}. Give another directory.") from None


def _picture(dot: str, num_nodes: int) -> str | None:
    """Return the graph as SVG; None, with a warning, if it cannot be drawn."""
    if num_nodes > MAX_NODES:
        log.warning("no picture of the program: a graph of %d operations is too large to draw", num_nodes)
        return None
    try:
        # The text before `<svg` would load a style sheet.
        _, begin, svg = _drawn(dot).partition("<svg ")
        if begin:
            return begin + svg
        log.warning("no picture of the program: Graphviz drew none")
    except ImportError:
        log.warning(
            "no picture of the program: install Graphviz, or the package pygraphviz, to have it drawn"
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("no picture of the program: Graphviz failed: %s", error)
    return None


def _drawn(dot: str) -> str:
    program = shutil.which("dot")
    if program is not None:
        drawing = subprocess.run(
            [program, "-Tsvg"], input=dot.encode(), capture_output=True, check=True, timeout=DRAWING_SECONDS
        )
        return drawing.stdout.decode()
    graph = importlib.import_module("pygraphviz").AGraph(string=dot)
    return graph.draw(format="svg", prog="dot").decode()


def _graph(hlo: str) -> tuple[str, int]:
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
    # The loop appends to the list that it reads.
    for name in reached:
        ops = program.computations[name].values()
        called = dict.fromkeys(callee for op in ops if op.opcode in CALLING for callee in op.mentions)
        reached += [callee for callee in called if callee in program.computations and callee not in reached]
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
        operands = list(dict.fromkeys(operand for name in op.mentions for operand in stand_for.get(name, ())))
        is_drawn = op.opcode not in PLUMBING
        stand_for[op.name] = [op.name] if is_drawn else operands
        if is_drawn:
            yield from (f"{_quoted(operand)} -> {_quoted(op.name)};" for operand in operands)


def _calls(ops: Sequence[Instruction], computations: Mapping[str, Sequence[Instruction]]) -> Iterator[str]:
    """Yield an edge to the beginning of each computation that an operation calls."""
    calls = [(op, name) for op in ops if op.opcode in CALLING for name in op.mentions]
    for op, name in calls:
        first = next((target for target in computations.get(name, ()) if target.opcode not in PLUMBING), None)
        if first:
            yield f"{_quoted(op.name)} -> {_quoted(first.name)} [style=dashed];"


def _node(op: Instruction) -> str:
    color = COLLECTIVE_COLOR if collective_of(op.opcode) else COLORS.get(op.opcode, "white")
    shape = textwrap.shorten(LAYOUT.sub("", op.type), 60, placeholder=" …")
    label, tooltip = _quoted(f"{op.name}\n{shape}"), _quoted(op.source or op.opcode)
    return f'{_quoted(op.name)} [label={label}, tooltip={tooltip}, fillcolor="{color}"];'


def _quoted(text: str) -> str:
    # DOT and JSON escape the characters of HLO in the same way.
    return json.dumps(text, ensure_ascii=False)
