"""Predictions on disk: a line of JSON for each example, in order, going on where a killed run stopped.

preds.jsonl         all of them; it appears when the last is there
preds.jsonl.part    those so far
preds.jsonl.about   what they are of: number and parameters; gone when complete
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
      about: JSON-able: what the predictions are of, so that those of other parameters are not gone on with.
    """

    def __init__(self, path: str | Path, about: Mapping[str, Any]):
        self.path, self._content = Path(path), dict(about)
        self._part, self._about = self._beside(".part"), self._beside(".about")

    def open(self) -> int:
        """Return how many predictions are there already, whole ones.

        Raises:
          UsageError: the file is complete, or what is there so far is of something else.
        """
        if self.path.exists():
            raise UsageError(f"{self.path} is there already. Remove it, or give another path.")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._check()
        return _cut_to_whole_lines(self._part)

    def append(self, outputs: Iterable[Any]) -> None:
        """Write the next predictions; they are on disk when this returns."""
        with self._part.open("a") as file:
            file.writelines(json.dumps(output, default=_as_json) + "\n" for output in outputs)
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """Give the file its name, when all is there."""
        self._part.touch()
        self._part.replace(self.path)
        self._about.unlink()

    def _check(self) -> None:
        if not self._part.exists():
            self._about.write_text(json.dumps(self._content))
        elif not self._about.exists() or json.loads(self._about.read_text()) != self._content:
            raise UsageError(
                f"{self._part} has predictions of something else than {self._content}.\n"
                "  Remove it to begin anew, or give another path."
            )

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def _cut_to_whole_lines(path: Path) -> int:
    """Cut off what a killed writer left of a line, and return how many whole lines there are."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        lines = size = 0
        for line in file:
            if line.endswith(b"\n"):
                lines, size = lines + 1, size + len(line)
        file.truncate(size)
    return lines


def _as_json(value: Any) -> Any:
    return np.asarray(value).tolist()
