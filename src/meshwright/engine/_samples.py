"""Samples of the model of a run, for the run's page: texts, numbers and pictures, made from the parameters.

outputs/samples/step_00000100.jsonl         a line for each sample: {"prompt": "Once", "text": " upon"}
outputs/samples/step_00000100/0-digit.png   a picture; the line of sample 0 has its name
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from meshwright.base._internal import PyTree, documented, explained_as, in_order, is_file_name, write_whole
from meshwright.checkpoints._internal import step_name
from meshwright.engine._errors import errors_naming
from meshwright.engine._evaluation._batches import BeforeBatch, Scores
from meshwright.engine._evaluation._scoring import Scoring
from meshwright.engine._evaluations import EvaluationPart
from meshwright.engine._policies import InformedWhen, is_informed
from meshwright.engine._types import check_types
from meshwright.errors import UsageError
from meshwright.observe._internal import Image
from meshwright.processes import _internal as processes
from meshwright.processes._internal import When
from meshwright.training._internal import ComputeDtype, eval_params, key_of, narrowing

NAME = "samples"
"""The name of the samples in reports and files."""


@runtime_checkable
class Sampler(Protocol):
    """A value that makes the samples of a run: `Samples`, or `mw.lm.Generation`."""

    @property
    def when(self) -> int | When | InformedWhen:
        """The steps after which samples are made."""
        ...

    @property
    def num_samples(self) -> int | None:
        """The number of samples; None if it is not known. 0 makes none."""
        ...

    def check(self, params: PyTree) -> Sequence[str]:
        """Check that samples can be made of parameters, given as structs; return the numbers to average."""
        ...

    def rows(self, params: PyTree, seed: int) -> Sequence[Mapping[str, Any]]:
        """Return the samples. Collective."""
        ...


@explained_as("engine.Samples")
@documented
@dataclass(frozen=True)
class Samples:
    """Samples of a model, shown on the run's page.

    Raises:
      UsageError: A field has a wrong type.

    Example:
      >>> def digits(params, key):
      ...     noise = jax.random.uniform(key, (2, 8, 8))
      ...     return [{"digit": mw.observe.Image.of(params["w"] * x)} for x in noise]
      >>> mw.engine.Samples(digits, when=100).when
      100
    """

    num_samples: ClassVar[int | None] = None

    function: Callable[..., Sequence[Mapping[str, Any]]]
    """A function `(params)` or `(params, key)` of the evaluated parameters. It returns the samples, each a
    mapping of texts, numbers and `mw.observe.Image`s by name. With several processes it is called on all."""
    when: int | When | InformedWhen = 500
    """The steps after which samples are made, as in `Evaluation.when`; and after the last step."""

    def __post_init__(self) -> None:
        check_types(self)
        is_informed(self.when)  # raises if it is not a policy

    def check(self, params: PyTree) -> Sequence[str]:
        """Check nothing: what a function returns is known when it is called."""
        return ()

    def rows(self, params: PyTree, seed: int) -> Sequence[Mapping[str, Any]]:
        """Return the samples. Collective."""
        values = {"params": params, "key": key_of(seed)}
        return in_order(self.function, values, "samples function", optional="key")()


def samples_part(sampler: Sampler, compute_dtype: ComputeDtype, seed: int) -> EvaluationPart:
    """Return the evaluation of a run that makes samples."""
    files = _SampleFiles(sampler, compute_dtype, seed)
    scoring = Scoring(
        files.scores,
        lambda: iter((None,)),  # before it the run may interrupt this evaluation
        None,
        outputs=files.write,
        num_examples=sampler.num_samples,
        check=files.check,
    )
    return EvaluationPart(NAME, f"{NAME}/", NAME, sampler.when, scoring)


def check_sampler(sampler: Any, field: str) -> None:
    """Check that a value of the user makes samples."""
    if sampler is not None and not isinstance(sampler, Sampler):
        raise UsageError(
            f"{field} takes mw.engine.Samples or mw.lm.Generation; found {type(sampler).__name__}."
        )


class _SampleFiles:
    """The samples of the last call, until they are written."""

    def __init__(self, sampler: Sampler, compute_dtype: ComputeDtype, seed: int):
        self._sampler, self._narrow, self._seed = sampler, narrowing(compute_dtype), seed
        self._rows: Sequence[Mapping[str, Any]] = ()
        self._averaged: Sequence[str] = ()

    def check(self, target: Any) -> Sequence[str]:
        """Return the names of the scores."""
        with errors_naming(NAME):
            self._averaged = self._sampler.check(target.params)
        return self._averaged

    def scores(self, state: Any, batches: Iterable[Any]) -> Scores:
        """Make the samples, and return the means of their numbers. Collective."""
        for _ in batches:
            pass
        with errors_naming(NAME):
            self._rows = list(self._sampler.rows(self._narrow(eval_params(state)), self._seed))
            for number, row in enumerate(self._rows):
                _check_row(number, row)
        return {name: float(np.mean([row[name] for row in self._rows])) for name in self._averaged}

    def write(self, directory: Path, step: int, state: Any, before_batch: BeforeBatch) -> None:
        """Write the samples of the call before."""
        if not processes.is_lead():
            return
        directory.mkdir(parents=True, exist_ok=True)
        lines = []
        for number, row in enumerate(self._rows):
            line = dict(row)
            for name, value in row.items():
                if isinstance(value, Image):
                    line[name] = f"{step_name(step)}/{number}-{name}.png"
                    (directory / step_name(step)).mkdir(exist_ok=True)
                    write_whole(directory / line[name], value.png())
                elif not isinstance(value, str):
                    line[name] = np.asarray(value).item()
            lines.append(json.dumps(line) + "\n")
        write_whole(directory / f"{step_name(step)}.jsonl", "".join(lines).encode())


def _check_row(number: int, row: Any) -> None:
    if not isinstance(row, Mapping):
        raise UsageError(
            f"sample {number} is of type {type(row).__name__}: return a mapping for each sample."
        )
    for name, value in row.items():
        if not is_file_name(name):
            raise UsageError(f"sample {number} has the name {name!r}: give it one of letters and digits.")
        if not isinstance(value, str | Image) and np.ndim(value):
            raise UsageError(
                f"{name!r} of sample {number} is an array {list(np.shape(value))}: a sample has texts, "
                "numbers and pictures.\n  For a picture, return mw.observe.Image.of(pixels)."
            )
