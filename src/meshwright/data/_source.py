"""Sources of examples, one batch of arrays read from them, and facts that all processes must agree on."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.data._collate import Collate, check_numbers, collated, stack
from meshwright.data._kinds import Source, VectorSource, check_not_batched, is_indexed
from meshwright.errors import ExamplesError
from meshwright.processes import _internal as processes

# Number of readings of each of the three; examples made at random differ between them and get no digest.
_READINGS = 4


class Arrays:
    """Examples kept as whole arrays, such as `mw.data.Arrays({"image": images, "label": labels})`.

    Args:
      arrays: A pytree of arrays (memory maps too) with equal first dimensions.

    Raises:
      ExamplesError: There is no array, or the first dimensions differ.

    Example:
      >>> examples = mw.data.Arrays((np.zeros((10, 3)), np.arange(10)))
      >>> len(examples), examples[7][1]
      (10, np.int64(7))
    """

    def __init__(self, arrays: PyTree):
        lengths = {name: len(x) if np.ndim(x) else None for name, x in tree.named_leaves(arrays).items()}
        if len(set(lengths.values())) != 1 or None in lengths.values():
            some = dict(list(lengths.items())[:4])
            raise ExamplesError(
                f"the arrays' first dimensions must be equal; they are {some or 'missing'}.\n"
                "  Each value of the mapping must be an array; np.asarray makes one of a list."
            )
        self._arrays = arrays
        self._length: int = next(iter(lengths.values()))  # type: ignore[assignment]

    @property
    def in_memory(self) -> bool:
        """False if an array is a memory map, whose reading may wait for a disk."""
        return not any(isinstance(x, np.memmap) for x in jax.tree.leaves(self._arrays))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> PyTree:
        return jax.tree.map(lambda x: x[index], self._arrays)

    def __getitems__(self, ids: Sequence[int]) -> PyTree:
        return self.rows(np.asarray(ids))

    def rows(self, ids: np.ndarray) -> PyTree:
        """Return the examples `ids`, int64[k], as one batch."""
        return jax.tree.map(lambda x: np.asarray(x[ids]), self._arrays)


def num_examples(examples: Any) -> int | None:
    """Return the number of examples; None if they cannot be indexed.

    Example:
      >>> mw.data._internal.num_examples({"x": np.zeros((10, 3))})
      10
    """
    if not is_indexed(examples):
        return None
    return len(Arrays(examples) if isinstance(examples, Mapping) else examples)


def as_source(examples: Any) -> Source:
    """Return `examples` as a `Source`; a mapping of arrays becomes `Arrays`.

    Example:
      >>> mw.data._internal.as_source({"x": np.arange(10)})[3]
      {'x': np.int64(3)}
    """
    source = Arrays(examples) if isinstance(examples, Mapping) else examples
    if isinstance(examples, tuple) and all(np.ndim(x) for x in examples):
        raise ExamplesError(
            "a tuple of arrays is not a set of examples.\n"
            "  Give the arrays names, {'image': images, 'label': labels}, or wrap it in mw.data.Arrays."
        )
    check_not_batched(examples)
    if not is_indexed(source):
        raise unreadable(examples)
    if len(source) == 0:
        raise ExamplesError("there are no examples: the source's length is 0.")
    return source


def unreadable(examples: Any) -> ExamplesError:
    """Return the error for an object that is not a set of examples."""
    return ExamplesError(
        f"examples must have __len__ and __getitem__; {type(examples).__name__} does not.\n"
        "  Make a list of them, or give a function that returns a new iterable for each epoch."
    )


def num_threads_for(examples: Any, collate: Collate | None) -> int:
    """Return the default number of threads that read ahead: 0 if a thread would cost more than reading."""
    source = Arrays(examples) if isinstance(examples, Mapping) else examples
    return 0 if isinstance(source, Arrays) and source.in_memory and collate is None else 2


class Part(NamedTuple):
    """Some examples of a source."""

    source: "Source | PartSource"
    """The source."""
    ids: np.ndarray
    """Numbers of the examples, int64[k]."""
    first: int = 0
    """Number of the source's first example in the epoch, if the source is a piece of an epoch."""
    epochs: int | np.ndarray = 0
    """Epoch of all examples, or of each, int64[k]."""
    length: int | None = None
    """Length that they are padded to, if any."""


class PartSource:
    """A source whose examples depend on more than their ids."""

    def fetch(self, part: Part) -> list[PyTree]:
        """Return the examples of a part of this source."""
        raise NotImplementedError


def read(parts: Sequence[Part], collate: Collate | None) -> PyTree:
    """Return the examples of all `parts` as one batch, made by `collate` if there is one."""
    if collate is not None:
        return collated(collate, [example for part in parts for example in rows_of(part)])
    pieces = [_stacked(part) for part in parts]
    return pieces[0] if len(pieces) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *pieces)


def read_rows(source: Source, ids: np.ndarray) -> PyTree:
    """Return some examples as a batch: a pytree of arrays [k, ...].

    Example:
      >>> mw.data._internal.read_rows([{"x": 1.0}, {"x": 2.0}], np.array([1, 0]))
      {'x': array([2., 1.])}
    """
    return _stacked(Part(source, ids))


def rows_of(part: Part) -> list[PyTree]:
    """Return the examples of a part one by one, even if the source returns them as a batch."""
    fetched = _fetched(part)
    if isinstance(fetched, list):
        return fetched
    return [jax.tree.map(lambda x, i=i: x[i], fetched) for i in range(len(part.ids))]


def _stacked(part: Part) -> PyTree:
    fetched = _fetched(part)
    batch = stack(fetched, part.ids) if isinstance(fetched, list) else fetched
    check_numbers(batch)
    return batch


def _fetched(part: Part) -> PyTree:
    """Return a list of examples, or the batch of a source that fetches many at once."""
    source = part.source
    if isinstance(source, Arrays):
        # Indexing whole arrays is much cheaper than a list of examples.
        return source.rows(part.ids)
    if isinstance(source, PartSource):
        return source.fetch(part)
    numbers = part.ids.tolist()
    if not isinstance(source, VectorSource):
        return [source[i] for i in numbers]
    fetched = source.__getitems__(numbers)
    return fetched if isinstance(fetched, list) else jax.tree.map(np.asarray, fetched)


def facts_of(examples: Any) -> dict[str, str]:
    """Return the number of examples, and digests of the first, the middle and the last, by name.

    Collective: if any process finds that examples are made at random, all return the number alone.
    """
    source = as_source(examples) if num_examples(examples) else []
    ids = sorted({0, len(source) // 2, len(source) - 1}) if len(source) else []
    part = Part(source, np.asarray(ids, np.int64))
    readings = [list(map(_digest, rows_of(part) if ids else [])) for _ in range(_READINGS)]
    # Examples that are made at random differ between two readings, and would differ between processes.
    at_random = processes.gather_on_hosts("the examples", any(reading != readings[0] for reading in readings))
    digests = {} if any(at_random) else {f"example {i}": x for i, x in zip(ids, readings[0], strict=True)}
    return {"number of examples": str(len(source)), **digests}


def _digest(example: Any) -> str:
    """Return a digest of an example; of leaves that are neither numbers nor text, only the type counts."""
    leaves, structure = jax.tree.flatten(example, is_leaf=lambda x: x is None)
    digest = hashlib.sha256(str(structure).encode())
    for x in leaves:
        digest.update(_bytes(x))
    return digest.hexdigest()[:12]


def _bytes(x: Any) -> bytes:
    if isinstance(x, str | bytes | int | float | complex | None):
        return repr(x).encode()
    if not (hasattr(x, "__array__") or hasattr(x, "__array_interface__")):
        return type(x).__qualname__.encode()
    array = np.asarray(x)
    values = str(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
    return f"{array.dtype}{array.shape}".encode() + values
