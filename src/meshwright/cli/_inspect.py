"""`meshwright inspect`: show the contents of a run or a checkpoint, from its files alone.

Of a run it first says where its time goes, and what would help most.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from meshwright.base._internal import (
    aligned,
    human_bytes,
    local_copy,
    parse_object,
    read_file,
    screen_width,
    wrapped,
)
from meshwright.checkpoints._internal import (
    LazyArray,
    checkpoints_of,
    contents,
    find_step,
    open_source,
    reason_set_aside,
)
from meshwright.cli._checkpoint_option import step_asked
from meshwright.cli._train import Result
from meshwright.errors import printable
from meshwright.observe._internal import read_jsonl
from meshwright.report import _internal as report

METRICS = "metrics.jsonl"
BEGAN_FROM = "began_from.txt"


def inspect(options: argparse.Namespace) -> Result:
    """Show the checkpoints under a path and the arrays of one of them; of a run, also its newest report.

    If no step is asked for, a run is also explained.
    """
    explanation: list[str] = []
    place, step = checkpoints_of(options.path), step_asked(options, options.path)
    if place == options.path:
        found = _checkpoints(place, step)
    else:
        has_some = step is not None or contents(place).checkpoints
        newest = _checkpoints(place, step) if has_some else {"checkpoint": None}
        wanted = (lambda name: True) if step is None else (lambda name: name in (METRICS, BEGAN_FROM))
        with local_copy(options.path, wanted) as run:
            found = {"run": options.path, **_began_from(run), "reported": _newest_report(run), **newest}
            if step is None:
                explanation, found["explanation"] = _explained(run, options.path)
    return "\n".join([*explanation, _text(found, screen_width())]), found


def _explained(directory: Path, place: str) -> tuple[list[str], dict[str, Any]]:
    """Return where the time of a run goes, as lines and as a document, by its files and a plan among them."""
    planned, file, problems = None, directory / report.PLAN, []
    if file.is_file():
        try:
            planned = report.planned_from(parse_object(read_file(file)))
        except (OSError, ValueError) as error:
            command = "`meshwright plan MODULE:FUNCTION --on HARDWARE --json`"
            problems.append(f"{file.name} is no plan, as {command} prints it: {error}")
    found = report.explain(report.read_run(directory, place), planned)
    lines = [*str(found).splitlines(), *problems]
    return [*(wrapped(line, width=screen_width(), indent="    ") for line in lines), ""], found.document()


def _checkpoints(place: str, step: int | None) -> dict[str, Any]:
    """Describe one checkpoint, and list those beside it: that of `step`, or the newest that can be read."""
    listed = contents(place)
    whole = [each.path for each in listed.checkpoints if listed.is_ours and each.nbytes is not None]
    newest = whole[-1] if whole else place
    found = _checkpoint(newest if step is None else str(find_step(place, step)))
    if listed.checkpoints:
        found["checkpoints"] = [dataclasses.asdict(each) for each in listed.checkpoints]
        found |= {"set_aside": list(listed.set_aside), "is_ours": listed.is_ours}
    return found


def _checkpoint(path: str) -> dict[str, Any]:
    source = open_source(path)
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


def _array(array: LazyArray) -> dict[str, Any]:
    said = {"shape": list(array.shape), "dtype": array.dtype.name, "bytes": array.nbytes}
    return said | ({"prng_key": array.key_impl} if array.key_impl else {})


def _began_from(run: Path) -> dict[str, str]:
    """Return the checkpoints that a run began from, or {} if it began from its seed."""
    file = run / BEGAN_FROM
    sources = read_file(file).decode(errors="replace").splitlines() if file.is_file() else []
    return {"began_from": ", ".join(sources)} if sources else {}


def _newest_report(run: Path) -> dict[str, Any]:
    metrics = run / METRICS
    reports = read_jsonl(metrics) if metrics.exists() else []
    return {name: value for report in reports for name, value in report.items() if name != "time"}


def _text(found: dict[str, Any], width: int | None) -> str:
    tables = ("arrays", "bytes", "checkpoints", "set_aside", "is_ours", "explanation")
    unknown = {key for key in ("step", "writer", "extra") if found.get(key) in (None, "", {})}
    told = {key: value for key, value in found.items() if key not in {*tables, *unknown}}
    lines = [wrapped(f"{key:11} {_flat(value)}", width=width, indent=" " * 12) for key, value in told.items()]
    if not found["checkpoint"]:
        return "\n".join(lines)
    lines += [f"{'bytes':11} {human_bytes(found['bytes'])}", ""]
    rows = [
        (
            printable(name, keep=""),
            " × ".join(map(str, array["shape"])) or "scalar",
            f"key<{array['prng_key']}>" if "prng_key" in array else array["dtype"],
            human_bytes(array["bytes"]),
        )
        for name, array in found["arrays"].items()
    ]
    return "\n".join([*lines, *aligned(rows, right=(3,), width=width, indent="  "), *_listed(found)])


def _listed(found: dict[str, Any]) -> list[str]:
    if "checkpoints" not in found:
        return []
    unknown = "damaged" if found["is_ours"] else ""
    rows = [
        f"  step {each['step']:<12} {_size(each['nbytes'], unknown):>9}{'  pinned' if each['pinned'] else ''}"
        for each in found["checkpoints"]
    ]
    return ["", *rows, *(f"  {name}, set aside as {reason_set_aside(name)}" for name in found["set_aside"])]


def _size(nbytes: int | None, unknown: str) -> str:
    return unknown if nbytes is None else human_bytes(nbytes)


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        inner = (
            (key, f"({_flat(part)})" if isinstance(part, dict) else _flat(part))
            for key, part in value.items()
        )
        return "  ".join(f"{printable(str(key), keep='')}={part}" for key, part in inner)
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value), keep="")
