"""Predictions on disk: a line of JSON for each example, in order, going on where a killed run stopped.

preds.jsonl         all of them; it appears when the last is there
preds.jsonl.part    those so far
preds.jsonl.about   what they are of; it stays, so that the same call finds them made
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import UsageError


class Outputs:
    """The file that predictions go to. For one process to write.

    Args:
      path: the file to be. Its directory is made.
      about: JSON-able: what the predictions are of, so that those of something else are not gone on with.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]):
        self._path, self._content = path, dict(about)
        self._part, self._about = _beside(path, ".part"), _beside(path, ".about")

    def begin(self, batch_size: int) -> int | None:
        """Return how many predictions are kept of an earlier call, whole batches of them; None if all.

        Raises:
          UsageError: what is there is of something else.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        present = [path for path in (self._path, self._part) if path.exists()]
        if not present:
            self._about.write_text(json.dumps(self._content))
            self._part.touch()
            return 0
        self._check(present[0])
        return None if self._path in present else _cut(self._part, batch_size)

    def append(self, outputs: Iterable[Any]) -> None:
        """Write the next predictions. They outlive this process when this returns.

        Raises:
          UsageError: JSON cannot hold one.
        """
        lines = "".join(json.dumps(output, default=_as_json) + "\n" for output in outputs)
        with self._part.open("ab") as file:
            file.write(lines.encode())

    def finish(self) -> None:
        """Give the file its name, when all is there."""
        with self._part.open("rb") as file:
            os.fsync(file.fileno())
        self._part.replace(self._path)

    def _check(self, found: Path) -> None:
        said = _read(self._about)
        changed = [
            f"{name} was {said.get(name)}, is {now}"
            for name, now in self._content.items()
            if said.get(name) != now
        ]
        if changed:
            raise UsageError(
                f"{found} is there already, with other predictions: {'; '.join(changed)}.\n"
                "  Remove it to begin anew, or give another path."
            )


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _read(about: Path) -> dict[str, Any]:
    """Return what a call left here; nothing, where none did or the machine went down meanwhile."""
    try:
        return json.loads(about.read_text())
    except (FileNotFoundError, ValueError):
        return {}


def _cut(path: Path, batch_size: int) -> int:
    """Cut off what lies behind the last whole batch, and return how many predictions stay.

    Batches then have the same examples as if nothing had happened, so that rounding and randomness do not
    differ.
    """
    kept = size = end = 0
    with path.open("r+b") as file:
        for number, line in enumerate(file, start=1):
            # A machine that goes down may leave zeros where bytes were not on disk yet.
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
        f"JSON cannot hold an output that has a {type(value).__name__} in it: {value!r:.60}.\n"
        "  Let `output` return numbers, text, arrays, lists and dictionaries of them, or leave out `to`."
    )
