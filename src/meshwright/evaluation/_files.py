"""Files of a model's outputs for each example of an evaluation, as lines of JSON.

outputs/test/step_00000100.jsonl         all, in the examples' order; it appears when the last is there
outputs/test/step_00000100.jsonl.part    those so far
"""

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshwright import process, tree
from meshwright.checkpoint import step_name
from meshwright.errors import UsageError
from meshwright.evaluation._look import Look
from meshwright.evaluation._rows import RowsOver
from meshwright.train import nothing
from meshwright.tree import PyTree


class OutputFiles:
    """A file for each step at which an evaluation is made; process 0 writes it. Collective."""

    def __init__(self, rows: RowsOver, examples: Any):
        self._rows, self._examples = rows, examples

    def __call__(self, directory: Path, step: int, state: Any, look: Look = nothing) -> None:
        """Compute the outputs of all examples and write them, in place of what an earlier attempt wrote."""
        found = self._rows(state, self._examples, look)
        if process.is_lead():
            lines = (line for _, outputs in found for line in _lines(outputs))
            _write(directory / f"{step_name(step)}.jsonl", lines)
        else:
            deque(found, maxlen=0)  # this process's share of the work

    def check(self, state: Any, batch: PyTree) -> None:
        """Try the function on structs, without compiling.

        Raises:
          UsageError: it does not return arrays by name, with a number for each example.
        """
        outputs = self._rows.check(state, batch)
        if not isinstance(outputs, Mapping):
            raise UsageError(f"it must return {{name: array}}; it returns a {type(outputs).__name__}.")
        for name, x in tree.named_leaves(outputs).items():
            if not any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
                raise UsageError(f"{name} is {x.dtype}, which JSON cannot hold: return real numbers.")


def _lines(outputs: PyTree) -> Iterator[str]:
    """Yield an object for each row of all arrays."""
    columns = {name: _plain(np.asarray(x)) for name, x in tree.named_leaves(outputs).items()}
    for row in zip(*columns.values(), strict=True):
        yield json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False) + "\n"


def _plain(x: np.ndarray) -> list[Any]:
    """Return nested lists of what strict JSON can hold: "nan", "inf" and "-inf" for what it cannot."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x.tolist()
    x = x.astype(np.float64)  # bfloat16 is no number to Python
    finite = np.isfinite(x)
    return x.tolist() if finite.all() else np.where(finite, x.astype(object), x.astype(str)).tolist()


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a file that has its name only when all is in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
