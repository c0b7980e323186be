"""Print figures of the code beside those of another commit: `make measure SINCE=HEAD~10`.

They point at places and are no verdict: nothing fails by them. `--limits` prints how many functions, classes
and files are over a limit, and the places that are new.
"""

import argparse
import ast
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMITS = {"body": 40, "class": 150, "file": 400, "parameters": 8}
"""The most lines of a function's body, of a class and of a file, and the most parameters."""
VAGUE = frozenset(
    [
        "after",
        "and",
        "asked",
        "at",
        "before",
        "both",
        "by",
        "done",
        "each",
        "found",
        "given",
        "going",
        "gone",
        "held",
        "here",
        "it",
        "kept",
        "known",
        "left",
        "made",
        "now",
        "of",
        "one",
        "place",
        "said",
        "seen",
        "shown",
        "so",
        "stuff",
        "such",
        "taken",
        "that",
        "the",
        "then",
        "there",
        "these",
        "thing",
        "things",
        "this",
        "those",
        "to",
        "told",
        "vouched",
        "wanted",
        "what",
        "written",
    ]
)
"""Words that say nothing of what a variable, a parameter, a function or a class holds."""
AXES = ("fsdp", "tensor", "sequence", "expert", "pipeline", "replica")
"""Mesh axes, but for `data`: the word also means much else."""
AIMS = {
    "entries of the package": "≤ 20",
    "files": "≤ 480",
    "names at the top": "≤ 40",
    "names at all doors": "≤ 300",
    "names at two doors": "0",
    "imports by string": "0",
    "vague names, %": "≤ 0.5",
    "comments in 100 lines": "≥ 3",
    "private functions called once, %": "≤ 55",
    "files that name an axis, at most": "≤ 5",
    "words of the docs": "≤ 45000",
}


@dataclass
class Count:
    """What is counted while the files are read."""

    totals: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    axes: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in LIMITS})

    def check(self, kind: str, size: int, where: str) -> None:
        """Note a place that is over a limit."""
        if size > LIMITS[kind]:
            self.places[kind].append(f"{where}: {size}")


def is_docstring(node: ast.AST) -> bool:
    """Return whether a statement is only a string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def bound_names(node: ast.AST) -> list[str]:
    """Return the name that a node binds, if it binds one."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)):
            return [name]
    return []


def count_file(count: Count, path: Path, package: Path) -> None:
    """Add the figures of a file."""
    text, where = path.read_text(), path.relative_to(package)
    tree, lines = ast.parse(text), text.splitlines()
    prose: set[int] = set()
    for node in ast.walk(tree):
        count.names.update(name.strip("_").lower() for name in bound_names(node))
        if is_docstring(node):
            prose |= {*range(node.lineno, node.end_lineno + 1)}
        elif isinstance(node, ast.ClassDef):
            count.check("class", node.end_lineno - node.lineno + 1, f"{where} {node.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[is_docstring(node.body[0]) :]
            count.check(
                "body", body[-1].end_lineno - body[0].lineno + 1 if body else 0, f"{where} {node.name}"
            )
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            others = [argument for argument in arguments if argument.arg not in ("self", "cls")]
            count.check("parameters", len(others), f"{where} {node.name}")
    count.check("file", len(lines), f"{where}")
    words = Counter(re.findall(r"\w+", text))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    private = [name for name in functions if re.match(r"_[a-z]", name)]
    strings = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    count.axes.update(strings & {*AXES})
    count.totals["imports by string"] += any(
        re.fullmatch(r"meshwright(\.\w+)+:\w+", text) for text in strings
    )
    count.totals["files"] += 1
    count.totals["lines"] += len(lines)
    count.totals["comments"] += sum(line.lstrip().startswith("#") for line in lines)
    count.totals["lines of code"] += sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in prose
        for number, line in enumerate(lines, 1)
    )
    count.totals["private"] += len(private)
    count.totals["called once"] += sum(words[name] == 2 for name in private)


def declared(path: Path) -> list[str]:
    """Return the names in the `__all__` of a module."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements)):
                return [element.value for element in elements if isinstance(element, ast.Constant)]
    return []


def figures(root: Path) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return the figures of a checkout, and the places that are over a limit."""
    package = root / "src/meshwright"
    count = Count()
    for path in sorted(package.rglob("*.py")):
        count_file(count, path, package)
    entries = [path for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    top = declared(package / "__init__.py")
    doors = [name for path in package.glob("[a-z]*/__init__.py") for name in declared(path)]
    totals, bound = count.totals, count.names.total()
    rows = {
        "entries of the package": len(entries),
        "files": totals["files"],
        "lines": totals["lines"],
        "lines of code": totals["lines of code"],
        "names at the top": len(top),
        "names at all doors": len(top) + len(doors),
        "names at two doors": sum(times > 1 for times in Counter([*top, *doors]).values()),
        "imports by string": totals["imports by string"],
        "vague names, %": round(100 * sum(count.names[word] for word in VAGUE) / bound, 1),
        "comments in 100 lines": round(100 * totals["comments"] / totals["lines"], 1),
        "private functions called once, %": round(100 * totals["called once"] / max(1, totals["private"])),
        "files that name an axis, at most": max(count.axes.values(), default=0),
        "words of the docs": sum(len(path.read_text().split()) for path in (root / "docs").rglob("*.md")),
    }
    return rows | {
        f"{kind} over {LIMITS[kind]}": len(places) for kind, places in count.places.items()
    }, count.places


def figures_of_commit(commit: str) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return the figures of a commit."""
    command = ["git", "archive", commit, "src", "docs"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        return figures(Path(folder))


def main() -> None:
    """Print the figures of this checkout beside those of a commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", metavar="COMMIT", default="HEAD", help="the commit beside (default: HEAD)")
    parser.add_argument("--limits", action="store_true", help="only what is over a limit, and the new places")
    options = parser.parse_args()
    try:
        old_rows, old_places = figures_of_commit(options.since)
    except (OSError, subprocess.CalledProcessError):  # no git, or no commit: a copy of the sources
        sys.exit(f"measure: git has no commit {options.since!r}, so there is nothing to compare with.")
    rows, places = figures(ROOT)
    if not options.limits:
        print(f"{'':34}{options.since:>10}{'now':>10}   aim")
        for name, value in rows.items():
            print(f"{name:34}{old_rows.get(name, '–')!s:>10}{value!s:>10}   {AIMS.get(name, '')}".rstrip())
    elif sizes := [f"{name}: {rows[name]} ({old_rows[name]})" for name in rows if " over " in name]:
        print(f"Over a limit (at {options.since}), which fails nothing: {'; '.join(sizes)}.")
    for kind, new in places.items():
        # A place is known by the name of its file, so that a moved file is not new.
        old_names = {place.rpartition(":")[0].rpartition("/")[2] for place in old_places[kind]}
        for place in new:
            if place.rpartition(":")[0].rpartition("/")[2] not in old_names:
                print(f"  new: {kind} of {place}, over {LIMITS[kind]}")


if __name__ == "__main__":
    main()
