"""Files of a model's outputs, one line of JSON for each example of an evaluation.

outputs/test/step_00000100.jsonl         all outputs, in order; it gets this name when the last is written
outputs/test/step_00000100.jsonl.part    the outputs so far
"""

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.checkpoints._internal import step_name
from meshwright.engine._evaluation._interruption import BeforeBatch
from meshwright.engine._evaluation._rows import ExampleFunction
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes
from meshwright.training._internal import nothing


class OutputFiles:
    """Writes the outputs of an evaluation to a file for each step; process 0 writes it. Collective."""

    def __init__(self, rows: ExampleFunction, examples: Any):
        self._rows, self._examples = rows, examples

    def __call__(self, directory: Path, step: int, state: Any, before_batch: BeforeBatch = nothing) -> None:
        """Compute the outputs of all examples and write them. A file of an earlier attempt is replaced."""
        batches = self._rows(state, self._examples, before_batch)
        if processes.is_lead():
            lines = (line for _, outputs in batches for line in _lines(outputs))
            _write(directory / f"{step_name(step)}.jsonl", lines)
        else:
            deque(batches, maxlen=0)  # computes this process's share

    def check(self, state: Any, batch: PyTree) -> None:
        """Trace the function with structs, without compiling it."""
        outputs = self._rows.check(state, batch)
        if not isinstance(outputs, Mapping):
            raise UsageError(
                f"it must return {{name: array}}; it returns a value of type {type(outputs).__name__}."
            )
        for name, x in tree.named_leaves(outputs).items():
            if not any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
                raise UsageError(f"{name} has dtype {x.dtype}, which JSON cannot hold. Return real numbers.")


def _lines(outputs: PyTree) -> Iterator[str]:
    """Yield a line with a JSON object for each row of the arrays."""
    columns = {name: _as_json(np.asarray(x)) for name, x in tree.named_leaves(outputs).items()}
    for row in zip(*columns.values(), strict=True):
        yield json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False) + "\n"


def _as_json(x: np.ndarray) -> list[Any]:
    """Return nested lists for strict JSON, which has no NaN or infinity: they become "nan", "inf", "-inf"."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x.tolist()
    x = x.astype(np.float64)  # Python has no bfloat16
    finite = np.isfinite(x)
    return x.tolist() if finite.all() else np.where(finite, x.astype(object), x.astype(str)).tolist()


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a file that gets its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
