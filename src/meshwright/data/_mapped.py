"""Functions applied to each example, with randomness that belongs to the example."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from meshwright.base._internal import PyTree
from meshwright.data._batched import Batched
from meshwright.data._bucketed import Bucketed
from meshwright.data._kinds import by_epoch, is_indexed, takes
from meshwright.data._source import Arrays, Part, PartSource, rows_of
from meshwright.errors import ExamplesError

Function = Callable[..., PyTree]
"""`example -> example`, or with a second argument called `rng`, a `numpy.random.Generator`."""


def mapped(function: Function, examples: Any) -> Any:
    """Return `examples` with `function` applied to each when it is read, to decode, crop or augment.

    The result can be used wherever examples can. The function is called in the reading threads, by each
    process for its own examples only. If it has an argument called `rng`, it gets the generator
    `np.random.default_rng([seed, epoch, number])`, with the run's seed and the example's number: its index,
    or its place in the epoch if examples have no index. So an example gets the same random numbers on any
    number of processes, threads and devices and after any restart, and others in each epoch. In evaluation
    and prediction, seed and epoch are 0. A call of `Trainer.fit` after the first has a seed of its own.

    Args:
      function: Function of an example, and perhaps of `rng`. Apart from `rng` it must be pure.
      examples: Examples as `batches` takes them, except `Batched`: map inside its loader instead.

    Raises:
      ExamplesError: They are batches, or already grouped by length.

    Example:
      >>> def brighter(example, rng):
      ...     return {"image": example["image"] / 255 + rng.normal(scale=0.1)}
      >>> images = mw.data.mapped(brighter, {"image": np.zeros((10, 8, 8))})
      >>> len(images), images[0]["image"].shape
      (10, (8, 8))
    """
    if isinstance(examples, Batched | Bucketed):
        kind = type(examples).__name__
        raise ExamplesError(
            f"mw.data.mapped takes examples; these are mw.data.{kind}.\n"
            f"  Map them first: mw.data.{kind}(mw.data.mapped(function, examples), ...)"
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
    raise ExamplesError(f"mw.data.mapped takes examples; found {type(examples).__name__}.")


def _mapped_epoch(function: Function, examples: Callable[[int], Any], epoch: int) -> Any:
    return mapped(function, examples(epoch))


@dataclass(frozen=True, repr=False)
class Mapped(PartSource):
    """A source whose examples are changed by `functions`, one after the other."""

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
        """Return some of the examples, as `select` of Hugging Face's data sets does.

        They get the random numbers of the first examples.
        """
        return replace(self, examples=[self.examples[i] for i in ids])

    def fetch(self, part: Part) -> list[PyTree]:
        """Return the examples of a part of this source."""
        (seed, first_epoch), shape = self.map_seed, part.ids.shape
        epochs = np.broadcast_to(first_epoch + np.asarray(part.epochs), shape).tolist()
        numbers, apply = (part.first + part.ids).tolist(), _in_turn(self.functions)
        # Each example has its own generator, so its numbers depend on no thread, process or restart.
        draws = [(seed, *draw) for draw in zip(epochs, numbers, strict=True)]
        return list(map(apply, rows_of(part._replace(source=self.examples)), draws))


@dataclass(frozen=True)
class MappedIterable:
    """An iterable whose items are changed by `functions`, one after the other."""

    examples: Iterable[Any]
    functions: tuple[Function, ...]

    def __iter__(self) -> Iterator[PyTree]:
        apply = _in_turn(self.functions)
        for number, example in enumerate(self.examples):
            yield apply(example, (0, 0, number))


def seeded(examples: Any, map_seed: tuple[int, int]) -> Any:
    """Return `examples` with a seed and the number of the first epoch for the randomness of `mapped`."""
    if isinstance(examples, Bucketed):
        return replace(examples, examples=seeded(examples.examples, map_seed))
    return replace(examples, map_seed=map_seed) if isinstance(examples, Mapped) else examples


def _in_turn(functions: tuple[Function, ...]) -> Callable[[PyTree, Sequence[int]], PyTree]:
    """Return a function that applies all functions to an example, with one generator seeded by `draw`."""
    asking = [(function, takes(function, "rng")) for function in functions]
    is_asked = any(asks for _, asks in asking)

    def apply(example: PyTree, draw: Sequence[int]) -> PyTree:
        # A generator costs 30 µs, so it is made only if a function asks for one.
        rng = np.random.default_rng(draw) if is_asked else None
        for function, asks in asking:
            example = function(example, rng=rng) if asks else function(example)
        return example

    return apply
