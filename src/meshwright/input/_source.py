"""From examples to one batch of numpy arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from meshwright import tree
from meshwright.errors import ExamplesError
from meshwright.input._protocol import Source, VectorSource

PyTree = Any


class Arrays:
    """Examples kept as whole arrays: `Arrays({"image": images, "label": labels})`.

    Args:
      arrays: a pytree of arrays (memory maps too) whose first dimensions are equal.

    Raises:
      ExamplesError: there is no array, or the first dimensions differ.
    """

    def __init__(self, arrays: PyTree):
        lengths = {name: len(x) if np.ndim(x) else None for name, x in tree.named_leaves(arrays).items()}
        if len(set(lengths.values())) != 1 or None in lengths.values():
            some = dict(list(lengths.items())[:4])
            raise ExamplesError(
                f"the arrays' first dimensions must be equal; they are {some or 'not there'}.\n"
                "  Each value of the mapping must be an array; np.asarray makes one of a list."
            )
        self._arrays = arrays
        self._length: int = next(iter(lengths.values()))  # type: ignore[assignment]

    @property
    def in_memory(self) -> bool:
        """False where an array is a memory map, whose reading may wait for a disk."""
        return not any(isinstance(x, np.memmap) for x in jax.tree.leaves(self._arrays))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> PyTree:
        return jax.tree.map(lambda x: x[index], self._arrays)

    def __getitems__(self, ids: Sequence[int]) -> PyTree:
        return self.rows(np.asarray(ids))

    def rows(self, ids: np.ndarray) -> PyTree:
        """Return the examples `ids` (int64[k]) as one batch."""
        return jax.tree.map(lambda x: np.asarray(x[ids]), self._arrays)


def as_source(examples: Any) -> Source:
    """Return `examples` as a `Source`: a mapping of arrays is read by rows, the rest as it is.

    Raises:
      ExamplesError: `examples` cannot be indexed, or there are none.
    """
    source = Arrays(examples) if isinstance(examples, Mapping) else examples
    if isinstance(examples, tuple) and all(np.ndim(x) for x in examples):
        raise ExamplesError(
            "a tuple of arrays is no set of examples.\n"
            "  Give the arrays names, as in {'image': images, 'label': labels}, or wrap it in mw.Arrays."
        )
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise ExamplesError(
            f"examples must have __len__ and __getitem__; {type(examples).__name__} has not.\n"
            "  Make a list of them, or give `fit` an iterator of your own with get_state and set_state."
        )
    if len(source) == 0:
        raise ExamplesError("there are no examples: the source's length is 0.")
    return source


def read_rows(source: Source, ids: np.ndarray) -> PyTree:
    """Return the examples `ids` (int64[k]) as a batch: a pytree of arrays of shape [k, ...].

    Raises:
      ExamplesError: the examples differ in structure or shape.
    """
    if isinstance(source, Arrays):
        return source.rows(ids)  # a list of them would cost more than the rows
    wanted = ids.tolist()
    fetched = source.__getitems__(wanted) if isinstance(source, VectorSource) else [source[i] for i in wanted]
    return stack(fetched, ids) if isinstance(fetched, list) else fetched


def stack(examples: list[PyTree], ids: np.ndarray) -> PyTree:
    """Return `examples` as one pytree of arrays. `ids` are only for the error message."""
    first = tree.named_leaves(examples[0])
    for i, example in zip(ids, examples, strict=True):
        _check_alike(int(ids[0]), first, int(i), tree.named_leaves(example))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *examples)


def _check_alike(a: int, first: dict[str, Any], b: int, other: dict[str, Any]) -> None:
    if first.keys() != other.keys():
        raise ExamplesError(
            f"examples {a} and {b} differ: one has {sorted(first)}, the other {sorted(other)}."
        )
    for name, x in first.items():
        if np.shape(x) != np.shape(other[name]):
            raise ExamplesError(
                f"examples {a} and {b} differ: {name or 'the array'} has shape {np.shape(x)} in one, "
                f"{np.shape(other[name])} in the other.\n"
                "  Pad or cut them to one shape in the source's __getitem__."
            )
