"""Batches of arrays from lists of examples: stacked, or made by the user's function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.errors import ExamplesError

Collate = Callable[..., PyTree]
"""Function that makes a batch of a list of examples: a pytree of arrays whose first dimensions run over the
list. The reading threads call it, with this process's examples only. For `Bucketed` examples it may take
the length that the whole batch is padded to, as `length`.
"""


_ARRAYS = (np.ndarray, list)
_NUMBERS = (np.generic, int, float, complex)


def collated(collate: Collate, examples: list[Any]) -> PyTree:
    """Return `collate(examples)` as a pytree of NumPy arrays; lists in it become arrays."""
    batch = collate(examples)
    if isinstance(batch, Mapping) and not isinstance(batch, dict):
        # Tokenizers of `transformers` return mappings that are not pytrees.
        batch = dict(batch)
    structure = jax.tree.structure(batch, is_leaf=_is_list)
    named = tree.named_leaves(batch, is_leaf=_is_list)
    arrays = structure.unflatten([_column(name, x, len(examples)) for name, x in named.items()])
    check_numbers(arrays)
    return arrays


def stack(examples: Sequence[PyTree], ids: np.ndarray) -> PyTree:
    """Return `examples` as one pytree of arrays; lists in them become arrays."""
    try:
        return _stacked(examples)
    except ValueError as error:
        raise _unlike(examples, ids) or error from None


def _stacked(examples: Sequence[PyTree]) -> PyTree:
    """Stack dictionaries, tuples and arrays column by column."""
    first = examples[0]
    kind = type(first)
    if all(type(x) is kind for x in examples):
        # To handle each example as an arbitrary pytree, and to compare structures, would take
        # as long as to read it.
        if kind is dict and all(x.keys() == first.keys() for x in examples):
            return {key: _stacked([x[key] for x in examples]) for key in first}
        if kind is tuple and all(len(x) == len(first) for x in examples):
            return tuple(_stacked(column) for column in zip(*examples, strict=True))
        if issubclass(kind, _NUMBERS):
            return np.array(examples)
        if issubclass(kind, _ARRAYS):
            return np.stack(examples)
    # Other pytrees take the slow way.
    leaves, structures = zip(*(jax.tree.flatten(x, is_leaf=_is_list) for x in examples), strict=True)
    if any(structure != structures[0] for structure in structures):
        raise ValueError("structures differ")
    return structures[0].unflatten([np.stack(column) for column in zip(*leaves, strict=True)])


def check_numbers(batch: PyTree) -> None:
    """Raise an `ExamplesError` that names a leaf which is not numeric or boolean."""
    if all(_is_numeric(x.dtype) for x in jax.tree.leaves(batch)):
        return
    for name, x in tree.named_leaves(batch).items():
        if not _is_numeric(x.dtype):
            kind = "text" if x.dtype.kind in "US" else f"of type {x.dtype}"
            raise ExamplesError(
                f"{name or 'the batch'} is {kind}, which no device can compute with.\n"
                "  Leave it out, or give a `collate` that turns it into numbers."
            )


def _is_list(x: Any) -> bool:
    return isinstance(x, list)


def _is_numeric(dtype: np.dtype) -> bool:
    # Types of ml_dtypes, such as bfloat16, have the kind V.
    return dtype.kind in "biufc" or jnp.issubdtype(dtype, np.number)


def _column(name: str, x: Any, num_examples: int) -> np.ndarray:
    description = f"{name or 'the batch'}, which `collate` returned for {num_examples} examples,"
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ExamplesError(
            f"{description} cannot be an array: {error}\n  Pad or cut its rows to one length."
        ) from None
    if array.shape[:1] != (num_examples,):
        raise ExamplesError(
            f"{description} has shape {array.shape}.\n  Its first dimension must run over the examples."
        )
    return array


def _unlike(examples: Sequence[PyTree], ids: np.ndarray) -> ExamplesError | None:
    """Return an error that names the first example that differs from the first one, and the difference."""
    first = _shapes(examples[0])
    for i, example in zip(ids.tolist(), examples, strict=True):
        other, pair = _shapes(example), f"examples {ids[0]} and {i} differ"
        if first.keys() != other.keys():
            return ExamplesError(f"{pair}: one has {sorted(first)}, the other {sorted(other)}.")
        name = next((name for name in first if first[name] != other[name]), None)
        if name is not None:
            return ExamplesError(
                f"{pair}: {name or 'the array'} has shape {first[name]} in one, {other[name]} in the other.\n"
                "  Pad or cut them to one shape in the source's __getitem__, or in a `collate`."
            )
    return None


def _shapes(example: PyTree) -> dict[str, Any]:
    return {name: _shape(x) for name, x in tree.named_leaves(example, is_leaf=_is_list).items()}


def _shape(x: Any) -> tuple[int, ...] | str:
    try:
        return np.shape(x)
    except ValueError:
        # NumPy refuses a list of lists of several lengths.
        return "of rows of several lengths"
