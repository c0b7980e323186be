"""A compiled program as files: its optimized HLO text, and its graph.

<directory>/<name>.hlo.txt    HLO text with every operation
<directory>/<name>.dot        the graph, without the insides of fusions
<directory>/<name>.svg        the graph as a picture, if Graphviz is installed
"""

import importlib
import logging
import shutil
import subprocess
from pathlib import Path

import jax

from meshwright.base._internal import join, put_at
from meshwright.errors import MeshwrightError, UsageError
from meshwright.program._hlo._graph import to_dot

MAX_NODES = 1500  # Graphviz takes a minute for so many, and the picture is metres wide
DRAWING_SECONDS = 120

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
    dot, num_nodes = to_dot(text)
    contents = {"hlo.txt": text, "dot": dot, "svg": _picture(dot, num_nodes)}
    files = {f"{name}.{kind}": content for kind, content in contents.items() if content}
    with put_at(directory) as place:
        for file, content in files.items():
            _write(place / file, content)
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
