"""Predictions in a file, one line of JSON for each example. A killed call is resumed where it stopped.

preds.jsonl         all predictions; the file gets this name when the last one is written
preds.jsonl.part    the predictions so far
preds.jsonl.about   the parameters, the seed and the number of examples; a later call compares them
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import UsageError


class Outputs:
    """A file of predictions. Only one process may write it."""

    def __init__(self, path: Path, about: Mapping[str, Any]):
        self._path, self._about = path, dict(about)
        self._part_path, self._about_path = _with_suffix(path, ".part"), _with_suffix(path, ".about")

    def begin(self, batch_size: int) -> int | None:
        """Return how many predictions of an earlier call are kept, in whole batches; None if all are
        there.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        existing = [path for path in (self._path, self._part_path) if path.exists()]
        if not existing:
            self._about_path.write_text(json.dumps(self._about), encoding="utf-8")
            self._part_path.touch()
            return 0
        self._check_about(existing[0])
        return None if self._path in existing else _truncate(self._part_path, batch_size)

    def append(self, outputs: Iterable[Any]) -> None:
        """Append the next predictions. When this returns, they survive the death of this process."""
        lines = "".join(json.dumps(output, default=_as_json) + "\n" for output in outputs)
        with self._part_path.open("ab") as file:
            file.write(lines.encode())

    def finish(self) -> None:
        """Give the complete file its final name."""
        with self._part_path.open("rb") as file:
            os.fsync(file.fileno())
        self._part_path.replace(self._path)

    def _check_about(self, existing: Path) -> None:
        recorded = _read_about(self._about_path)
        changes = [
            f"{name} was {recorded.get(name)}, is now {value}"
            for name, value in self._about.items()
            if recorded.get(name) != value
        ]
        if changes:
            raise UsageError(
                f"{existing} already holds other predictions: {'; '.join(changes)}.\n"
                "  Remove the file to start again, or give another path."
            )


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _read_about(about: Path) -> dict[str, Any]:
    """Return the values that an earlier call wrote; empty if the file is missing or was left half written."""
    try:
        return json.loads(about.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def _truncate(path: Path, batch_size: int) -> int:
    """Truncate the file after its last whole batch, and return how many predictions are kept.

    The batches then hold the same examples as in a call that was never killed, so rounding and randomness
    are the same.
    """
    kept = size = end = 0
    with path.open("r+b") as file:
        for number, line in enumerate(file, start=1):
            # After a crash of the machine, bytes that were not on disk yet may be zeros.
            if not line.endswith(b"\n") or b"\0" in line:
                break
            end += len(line)
            if number % batch_size == 0:
                kept, size = number, end
        file.truncate(size)
    return kept


def _as_json(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return np.asarray(value).tolist()
    raise UsageError(
        f"JSON cannot hold an output that contains a value of type {type(value).__name__}: {value!r:.60}.\n"
        "  Return numbers, strings, arrays, or lists and dictionaries of them; or leave out `to`."
    )
