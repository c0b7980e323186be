"""`meshwright inspect`: show the contents of a run or a checkpoint, from its files alone.

Of a run it first says where its time goes, and what would help most.
"""

import argparse
from pathlib import Path
from typing import Any

from meshwright.base import _internal as base
from meshwright.checkpoints import _internal as checkpoints
from meshwright.cli._checkpoint import add_which, step_asked
from meshwright.cli._parser import Commands, Result
from meshwright.errors import printable
from meshwright.observe import _internal as observe
from meshwright.report import _internal as report

METRICS = "metrics.jsonl"
BEGAN_FROM = "began_from.txt"


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add("inspect", inspect)
    command.add_argument("path", metavar="PATH", help="a run, or a checkpoint of any format")
    add_which(command, "show")


def inspect(options: argparse.Namespace) -> Result:
    """Show the checkpoints under a path and the arrays of one of them; of a run, also its newest report.

    If no step is asked for, a run is also explained.
    """
    explanation: list[str] = []
    place, step = checkpoints.checkpoints_of(options.path), step_asked(options, options.path)
    if place == options.path:
        document = _checkpoints(place, step)
    else:
        has_some = step is not None or checkpoints.contents(place).checkpoints
        newest = _checkpoints(place, step) if has_some else {"checkpoint": None}
        is_read = (lambda name: True) if step is None else (lambda name: name in (METRICS, BEGAN_FROM))
        with base.local_copy(options.path, is_read) as run:
            document = {"run": options.path, **_began_from(run), "reported": _newest_report(run), **newest}
            if step is None:
                explanation, document["explanation"] = _explained(run, options.path)
    return "\n".join([*explanation, _text(document, base.screen_width())]), document


def _explained(directory: Path, place: str) -> tuple[list[str], dict[str, Any]]:
    """Return where the time of a run goes, as lines and as a document, by its files and a plan among them."""
    planned, file, problems = None, directory / report.PLAN, []
    if file.is_file():
        try:
            planned = report.planned_from(base.parse_object(base.read_file(file)))
        except (OSError, ValueError) as error:
            command = "`meshwright plan MODULE:FUNCTION --on HARDWARE --json`"
            problems.append(f"{file.name} is no plan, as {command} prints it: {error}")
    explanation = report.explain(report.read_run(directory, place), planned)
    width, texts = base.screen_width(), [*str(explanation).splitlines(), *problems]
    return [*(base.wrapped(text, width=width, indent="    ") for text in texts), ""], explanation.document()


def _checkpoints(place: str, step: int | None) -> dict[str, Any]:
    """Describe one checkpoint, and list those beside it: that of `step`, or the newest that can be read."""
    import dataclasses

    listed = checkpoints.contents(place)
    whole = [each.path for each in listed.checkpoints if listed.is_ours and each.nbytes is not None]
    newest = whole[-1] if whole else place
    document = _checkpoint(newest if step is None else str(checkpoints.find_step(place, step)))
    if listed.checkpoints:
        document["checkpoints"] = [dataclasses.asdict(each) for each in listed.checkpoints]
        document |= {"set_aside": list(listed.set_aside), "is_ours": listed.is_ours}
    return document


def _checkpoint(path: str) -> dict[str, Any]:
    source = checkpoints.open_source(path)
    arrays = {name: _array(x) for name, x in source.arrays().items()}
    return {
        "checkpoint": str(source),
        "format": source.format,
        "step": source.step,
        "writer": source.writer,
        "bytes": sum(array["bytes"] for array in arrays.values()),
        "extra": source.extra,
        "arrays": arrays,
    }


def _array(array: "checkpoints.LazyArray") -> dict[str, Any]:
    document = {"shape": list(array.shape), "dtype": array.dtype.name, "bytes": array.nbytes}
    return document | ({"prng_key": array.key_impl} if array.key_impl else {})


def _began_from(run: Path) -> dict[str, str]:
    """Return the checkpoints that a run began from, or {} if it began from its seed."""
    file = run / BEGAN_FROM
    sources = base.read_file(file).decode(errors="replace").splitlines() if file.is_file() else []
    return {"began_from": ", ".join(sources)} if sources else {}


def _newest_report(run: Path) -> dict[str, Any]:
    metrics = run / METRICS
    reports = observe.read_jsonl(metrics) if metrics.exists() else []
    return {name: value for report in reports for name, value in report.items() if name != "time"}


def _text(document: dict[str, Any], width: int | None) -> str:
    tables = ("arrays", "bytes", "checkpoints", "set_aside", "is_ours", "explanation")
    unknown = {key for key in ("step", "writer", "extra") if document.get(key) in (None, "", {})}
    values = {key: value for key, value in document.items() if key not in {*tables, *unknown}}
    rows = (f"{key:11} {_flat(value)}" for key, value in values.items())
    lines = [base.wrapped(row, width=width, indent=" " * 12) for row in rows]
    if not document["checkpoint"]:
        return "\n".join(lines)
    lines += [f"{'bytes':11} {base.human_bytes(document['bytes'])}", ""]
    table = [
        (
            printable(name, keep=""),
            " × ".join(map(str, array["shape"])) or "scalar",
            f"key<{array['prng_key']}>" if "prng_key" in array else array["dtype"],
            base.human_bytes(array["bytes"]),
        )
        for name, array in document["arrays"].items()
    ]
    return "\n".join([*lines, *base.aligned(table, right=(3,), width=width, indent="  "), *_listed(document)])


def _listed(document: dict[str, Any]) -> list[str]:
    if "checkpoints" not in document:
        return []
    rows = []
    for row in document["checkpoints"]:
        unknown = "damaged" if document["is_ours"] else ""
        size = unknown if row["nbytes"] is None else base.human_bytes(row["nbytes"])
        rows.append(f"  step {row['step']:<12} {size:>9}{'  pinned' if row['pinned'] else ''}")
    aside = (f"  {name}, set aside as {checkpoints.reason_set_aside(name)}" for name in document["set_aside"])
    return ["", *rows, *aside]


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        inner = (
            (key, f"({_flat(part)})" if isinstance(part, dict) else _flat(part))
            for key, part in value.items()
        )
        return "  ".join(f"{printable(str(key), keep='')}={part}" for key, part in inner)
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value), keep="")
