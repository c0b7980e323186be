"""Files of a model's outputs, one line of JSON for each example of an evaluation.

outputs/test/step_00000100.jsonl         all outputs, in order; it gets this name when the last is written
outputs/test/step_00000100.jsonl.part    the outputs so far
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.checkpoints._internal import step_name
from meshwright.data._internal import Collate, numbered_batches
from meshwright.engine._evaluation._batches import BeforeBatch, calling_before_each
from meshwright.engine._evaluation._measured import evaluating
from meshwright.engine._predict._run import BatchedPredict, Predictions, check_rows, rows_of
from meshwright.errors import UsageError
from meshwright.parallel._internal import Layout, in_mesh
from meshwright.processes import _internal as processes
from meshwright.training._internal import ComputeDtype, nothing


class ExampleFunction:
    """A function over all examples: `(state, examples) -> predictions`, as `BatchedPredict` yields them.

    Collective.
    """

    def __init__(
        self,
        function: Callable[..., PyTree],
        batch_size: int,
        layout: Layout,
        seed: int,
        *,
        compute_dtype: ComputeDtype,
        params: Callable[[Any], PyTree],
        collate: Collate | None = None,
    ):
        self._evaluate = evaluating(function, compute_dtype=compute_dtype, params=params)
        self._batch_size, self._layout, self._collate = batch_size, layout, collate
        # `BatchedPredict` gets the whole state in place of parameters; `_evaluate` selects the parameters.
        self._over = BatchedPredict(lambda state, _, batch, key: self._evaluate(state, batch), layout, seed)

    def __call__(self, state: Any, examples: Any, before_batch: BeforeBatch = nothing) -> Predictions:
        """Yield the indices of each batch's examples, and their outputs."""
        batches = numbered_batches(
            examples, self._batch_size, self._layout.batch_sharding, collate=self._collate
        )
        return self._over(state, None, calling_before_each(batches, before_batch))

    def of_each(self, state: Any, examples: Any, before_batch: BeforeBatch = nothing) -> list[PyTree]:
        """Return a list of the outputs of each example."""
        return [row for _, outputs in self(state, examples, before_batch) for row in rows_of(outputs)]

    def check(self, state: Any, batch: PyTree) -> PyTree:
        """Return structs of the outputs, given structs of a state and a batch. Compiles nothing."""
        with in_mesh(self._layout.mesh):
            outputs = jax.eval_shape(self._evaluate, state, batch)
        check_rows(outputs, jax.tree.leaves(batch)[0].shape[0])
        self._over.compare(state, None, batch)
        return outputs


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
