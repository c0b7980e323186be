"""Draw the packages and their imports, for `docs/design.md`: `python scripts/draw_packages.py --write`.

An arrow is an import. An import that other arrows imply is not drawn. Along a thick arrow go data and states;
the page lists these.
"""

import argparse
import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/meshwright"
PICTURE = ROOT / "docs/assets/packages.svg"
COLUMNS = {
    "cli": 2.2,
    "plan": 1.0,
    "debug": 3.0,
    "launch": 4.2,
    "lm": 1.0,
    "nn": 0.0,
    "engine": 2.2,
    "training": 1.1,
    "report": 2.2,
    "data": 3.2,
    "parallel": 0.3,
    "checkpoints": 2.2,
    "observe": 1.1,
    "program": 0.5,
    "processes": 3.4,
    "base": 1.8,
}
"""The column of each package, chosen so that no arrow crosses a box. The rows follow from the imports."""
WIDTH, HEIGHT, BETWEEN_COLUMNS, BETWEEN_ROWS, MARGIN = 104, 32, 150, 74, 10


def imports() -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    graph: dict[str, set[str]] = {path.parent.name: set() for path in PACKAGE.glob("*/__init__.py")}
    for package, imported in graph.items():
        for path in (PACKAGE / package).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text()))
            modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
            imported |= {name.split(".")[1] for name in modules if name.startswith("meshwright.")} & {*graph}
        imported.discard(package)
    return graph


def reached(graph: dict[str, set[str]], package: str) -> set[str]:
    """Return all packages that a package imports, also by way of others."""
    return set().union(*({near} | reached(graph, near) for near in graph[package]))


def drawn(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the imports that no others imply, as pairs."""
    return {
        (package, near)
        for package, imported in graph.items()
        for near in imported
        if not any(near in reached(graph, other) for other in imported)
    }


def rows(arrows: set[tuple[str, str]], packages: list[str]) -> dict[str, int]:
    """Return the row of each package, counted from the top: one below the lowest package that imports it."""

    def row(package: str) -> int:
        return max((row(importer) + 1 for importer, near in arrows if near == package), default=0)

    return {package: row(package) for package in packages}


def way_of_data() -> set[tuple[str, str]]:
    """Return the arrows that the page lists under `The way of data`."""
    page = (ROOT / "docs/design.md").read_text()
    return set(re.findall(r"^(\w+) → (\w+)", page.partition("## The way of data")[2], re.MULTILINE))


def picture() -> str:
    """Return the drawing as SVG."""
    graph = imports()
    arrows, thick = drawn(graph), way_of_data()
    row = rows(arrows, [*graph])
    x = {name: MARGIN + WIDTH / 2 + BETWEEN_COLUMNS * COLUMNS[name] for name in graph}
    y = {name: MARGIN + BETWEEN_ROWS * row[name] for name in graph}
    lines = [
        f'<line x1="{x[above]:g}" y1="{y[above] + HEIGHT}" x2="{x[below]:g}" y2="{y[below] - 4}" '
        f'stroke-width="{3 if (above, below) in thick else 1}" marker-end="url(#end)"/>'
        for above, below in sorted(arrows)
    ]
    boxes = [
        f'<rect x="{x[name] - WIDTH / 2:g}" y="{y[name]}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
        for name in sorted(graph)
    ]
    names = [f'<text x="{x[name]:g}" y="{y[name] + 21}">{name}</text>' for name in sorted(graph)]
    width, height = max(x.values()) + WIDTH / 2 + MARGIN, max(y.values()) + HEIGHT + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}">',
            "<title>The packages of meshwright and their imports</title>",
            '<marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" fill="#777"/></marker>',
            '<g stroke="#777">',
            *lines,
            '</g><g fill="#fff" stroke="#555">',
            *boxes,
            '</g><g fill="#111" font-family="sans-serif" font-size="15" text-anchor="middle">',
            *names,
            "</g>",
            "</svg>\n",
        ]
    )


def main() -> None:
    """Print the drawing, or write it into the docs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PICTURE.relative_to(ROOT)}")
    if parser.parse_args().write:
        PICTURE.write_text(picture())
    else:
        print(picture(), end="")


if __name__ == "__main__":
    main()
