"""A run's metrics as lines of JSON. All other views of a run's history are made from this file.

    {"step": 50, "time": 1795198801.25, "loss": 1.2345, "accuracy": 0.5}
    {"step": 100, "time": 1795198802.5, "loss": "nan", "accuracy": 0.5}

Each line is one object (https://jsonlines.org), in UTF-8. `time` is in seconds since 1970. JSON cannot
express numbers that are not finite, so they are the strings "nan", "inf" and "-inf". Texts and histograms
are objects; images are left out:

    {"step": 50, "time": 1795198801.25, "sample": {"text": "Once upon"}, "activations": {"counts": [3, 1],
     "edges": [1, 1.25, 1.5], "num_not_finite": 0, "sum": 4.5, "sum_squares": 5.1, "min": 1, "max": 1.3}}

`edges` have four digits; see `Histogram.bins`.
"""

import collections
import json
import math
import operator
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.base._internal import local_path, open_file, parse_json
from meshwright.errors import InputError, UsageError
from meshwright.observe._kinds import Image, Values, as_float
from meshwright.observe._writers import Writer

if TYPE_CHECKING:
    from meshwright.observe._metrics import Histogram

_STEPS = 1 << 63


def jsonl(path: str | Path, *, resume_step: int | None = None) -> Writer:
    """Return a writer that appends each report to a file, as one line of JSON.

    When the writer returns, the operating system has the line: a killed process loses none. After
    `sync_jsonl`, a power cut loses none either. A line that a kill cut off is removed when the file is opened
    again. The file is not kept open, so it need not be closed.

    Args:
      path: The file. It is created if missing, with its directory. It cannot be a URL: to report to a
        store, write to a directory that `storage.mirrored` copies there.
      resume_step: The step that a run continues from. Lines of later steps are removed, as those steps are
        done again; lines of step 0 and below stay. None keeps every line.

    Raises:
      InputError: The file contains something other than reports.
      UsageError: `path` is a URL. The writer raises it if a value is named `step` or `time`.

    Example:
      >>> write = mw.observe.jsonl("metrics.jsonl")
      >>> write(50, {"loss": 0.25})
      >>> mw.observe.read_jsonl("metrics.jsonl")
      [{'step': 50, 'time': ..., 'loss': 0.25}]
    """
    path = local_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        # Later steps are done again. Without this, the file would have two reports of each.
        _keep(path, math.inf if resume_step is None else resume_step)

    def write(step: int, values: Values, /) -> None:
        line = _line(step, time.time(), values)
        # The file is opened for each report, so that it need not be closed.
        with path.open("ab") as file:
            file.write(line)

    return write


def sync_jsonl(path: str | Path) -> None:
    """Flush the reports written so far to the disk.

    Call this before a checkpoint is committed, so that no checkpoint outlives the reports before it.
    """
    path = local_path(path)
    for entry in (path, path.parent):
        with suppress(FileNotFoundError):
            descriptor = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def newest_step(path: str | Path) -> int | None:
    """Return the step of the last report in a file; None if there is no report or no file."""
    file = local_path(path)
    lines = enumerate(_whole_lines(file), start=1) if file.exists() else ()
    last = collections.deque(lines, maxlen=1)
    return int(_report(last[0][1], f"{path}, line {last[0][0]}")["step"]) if last else None


def read_jsonl(path: str | Path) -> list[dict[str, float]]:
    """Return the reports in a file: for each, `step` (an int), `time` and the numbers by name.

    An incomplete last line is left out, as its run may be writing it.

    Args:
      path: The file, as `jsonl` writes it.

    Raises:
      InputError: A line is not a report.
      FileNotFoundError: There is no such file.

    Example:
      >>> mw.observe.jsonl("metrics.jsonl")(50, {"loss": float("nan")})
      >>> [report["loss"] for report in mw.observe.read_jsonl("metrics.jsonl")]
      [nan]
    """
    return [report for _, report in _reports(local_path(path))]


def salvage_jsonl(path: str | Path, on_damage: Callable[[str], None]) -> Iterator[dict[str, float]]:
    """Yield the reports in a file one by one, passing over lines that cannot be read."""
    for number, line in enumerate(_whole_lines(local_path(path)), start=1):
        try:
            report = _report(line, f"{path}, line {number}")
        except InputError as error:
            on_damage(str(error).partition("\n")[0])
        else:
            yield report


def _line(step: int, current_time: float, values: Values) -> bytes:
    for name in ("step", "time"):
        if name in values:
            raise UsageError(
                f"a metric may not be called {name!r}: in metrics files that is the report's own {name}."
            )
    report = {"step": step, "time": round(current_time, 3)} | {
        name: _json(name, value) for name, value in values.items() if not isinstance(value, Image)
    }
    return json.dumps(report, allow_nan=False, ensure_ascii=False).encode() + b"\n"


def _json(name: str, value: Any) -> Any:
    from meshwright.observe._metrics import Histogram  # loads JAX; reading a file does not

    match value:
        case Histogram():
            return _json_histogram(value)
        case str():
            return {"text": value}
        case _:
            return json_number(as_float(name, value))


def _json_histogram(histogram: "Histogram") -> dict[str, Any]:
    counts, edges = histogram.bins()
    facts = ("num_not_finite", "sum", "sum_squares", "min", "max")
    return {
        "counts": [int(count) for count in counts.tolist()],
        "edges": [float(f"{edge:.4g}") for edge in edges.tolist()],
        **{fact: json_number(getattr(histogram, fact)) for fact in facts},
    }


def json_number(value: float) -> float | str:
    """Return a number as strict JSON can store it: as it is if finite, else as text.

    Example:
      >>> mw.observe._internal.json_number(float("inf"))
      'inf'
    """
    value = float(value)
    return value if math.isfinite(value) else str(value)


def _reports(path: Path) -> Iterator[tuple[bytes, dict[str, float]]]:
    """Yield each complete line of the file, without its newline, and the report that it contains."""
    for number, line in enumerate(_whole_lines(path), start=1):
        yield line, _report(line, f"{path}, line {number}")


def _whole_lines(path: Path) -> Iterator[bytes]:
    with open_file(path) as file:
        for line in file:
            # A line without an end was cut off by a kill, or is being written.
            if line.endswith(b"\n"):
                yield line[:-1]


def _report(line: bytes, where: str) -> dict[str, float]:
    try:
        report = parse_json(line)
        step = operator.index(report["step"])
        numbers = {k: v for k, v in report.items() if not isinstance(v, dict) and k != "step"}
        if not 0 <= step < _STEPS or any(
            isinstance(v, float) and not math.isfinite(v) for v in numbers.values()
        ):
            raise ValueError("a number is larger than any that is written")  # such as 1e400
        return {"step": step} | {name: float(value) for name, value in numbers.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise InputError(
            f'{where}: expected a report such as {{"step": 50, "loss": 1.5}}, found {line[:60]!r}.\n'
            f"  Remove the line, or use another file."
        ) from error


def _keep(path: Path, last_step: float) -> None:
    content = b"".join(line + b"\n" for line, report in _reports(path) if report["step"] <= last_step)
    if len(content) != path.stat().st_size:
        _replace(path, content)


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: after a kill, and for a reader, it has either the old or the new content."""
    draft = path.with_name(path.name + ".tmp")
    # A killed process may have left the draft, or it may be a link, which must not be followed.
    draft.unlink(missing_ok=True)
    with draft.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
