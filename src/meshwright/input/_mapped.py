"""A function of each example, with randomness that is the example's own."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from meshwright.errors import ExamplesError
from meshwright.input._batched import Batched
from meshwright.input._bucketed import Bucketed
from meshwright.input._kinds import by_epoch, is_indexed, takes
from meshwright.input._source import Arrays, Part, PartSource, rows_of
from meshwright.tree import PyTree

Function = Callable[..., PyTree]
"""`example -> example`, or with a second argument that is called `rng`, a `numpy.random.Generator`."""


def mapped(function: Function, examples: Any) -> Any:
    """Return `examples` with `function` applied to each one when it is read: to decode, crop or augment.

    What it returns goes wherever examples go. The function is called in the threads that read, by each
    process for its own examples only. If it has an argument called `rng`, it is given a generator by that
    name: `np.random.default_rng([seed, epoch, number])`, of the run's seed and the example's number, which is
    its index, or where examples have none its place in the epoch. So an example draws the same on any number
    of processes, threads and devices and after any restart, and something else in each epoch. In evaluation
    and prediction, seed and epoch are 0.

    Args:
      function: of an example, and perhaps `rng`. Apart from what it draws it must be pure.
      examples: as `batches` takes them, but no `Batched`: its loader maps them itself.

    Raises:
      ExamplesError: they are batches, or grouped by length already.
    """
    if isinstance(examples, Batched | Bucketed):
        kind = type(examples).__name__
        raise ExamplesError(
            f"mw.mapped takes examples; these are mw.{kind}.\n"
            f"  Map them first: mw.{kind}(mw.mapped(function, examples), ...)"
            + (", or in the loader." if isinstance(examples, Batched) else ".")
        )
    if isinstance(examples, Mapped | MappedIterable):
        return replace(examples, functions=(*examples.functions, function))
    if isinstance(examples, Mapping):
        examples = Arrays(examples)
    if is_indexed(examples):
        return Mapped(examples, (function,))
    if callable(examples):
        return partial(_mapped_epoch, function, by_epoch(examples))
    if isinstance(examples, Iterable):
        return MappedIterable(examples, (function,))
    raise ExamplesError(f"mw.mapped takes examples; found {type(examples).__name__}.")


def _mapped_epoch(function: Function, examples: Callable[[int], Any], epoch: int) -> Any:
    return mapped(function, examples(epoch))


@dataclass(frozen=True, repr=False)
class Mapped(PartSource):
    """A source of which each example is what `functions`, one after the other, make of it."""

    examples: Any
    functions: tuple[Function, ...]
    map_seed: tuple[int, int] = field(default=(0, 0), repr=False)
    """The seed, and the number of the first epoch."""

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> PyTree:
        return self.fetch(Part(self, np.array([index])))[0]

    def __repr__(self) -> str:
        return f"Mapped({len(self)} examples)"

    def select(self, ids: Iterable[int]) -> "Mapped":
        """Return some of the examples, as data sets of Hugging Face do; they draw what the first ones do."""
        return replace(self, examples=[self.examples[i] for i in ids])

    def fetch(self, part: Part) -> list[PyTree]:
        """Return the examples of a part of this source."""
        (seed, first_epoch), shape = self.map_seed, part.ids.shape
        epochs = np.broadcast_to(first_epoch + np.asarray(part.epochs), shape).tolist()
        numbers, apply = (part.first + part.ids).tolist(), _in_turn(self.functions)
        draws = [(seed, *draw) for draw in zip(epochs, numbers, strict=True)]
        return list(map(apply, rows_of(part._replace(source=self.examples)), draws))


@dataclass(frozen=True)
class MappedIterable:
    """An iterable of which each item is what `functions` make of it."""

    examples: Iterable[Any]
    functions: tuple[Function, ...]

    def __iter__(self) -> Iterator[PyTree]:
        apply = _in_turn(self.functions)
        for number, example in enumerate(self.examples):
            yield apply(example, (0, 0, number))


def seeded(examples: Any, map_seed: tuple[int, int]) -> Any:
    """Return `examples`, whose mapping functions draw by a seed and the number of the first epoch."""
    if isinstance(examples, Bucketed):
        return replace(examples, examples=seeded(examples.examples, map_seed))
    return replace(examples, map_seed=map_seed) if isinstance(examples, Mapped) else examples


def _in_turn(functions: tuple[Function, ...]) -> Callable[[PyTree, Sequence[int]], PyTree]:
    """Return a function that applies all of them to an example, with one generator made of what is given."""
    asking = [(function, takes(function, "rng")) for function in functions]
    is_asked = any(asks for _, asks in asking)

    def apply(example: PyTree, draw: Sequence[int]) -> PyTree:
        rng = np.random.default_rng(draw) if is_asked else None
        for function, asks in asking:
            example = function(example, rng=rng) if asks else function(example)
        return example

    return apply
