"""The function that makes a batch's arrays of its examples, chosen by their kind and the `collate`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from meshwright.base._internal import PyTree, tree
from meshwright.data._batched import Batched
from meshwright.data._bucketed import Bucketed
from meshwright.data._collate import Collate
from meshwright.data._kinds import takes
from meshwright.data._source import Part, read
from meshwright.errors import ExamplesError

Read = Callable[[Sequence[Part]], PyTree]
"""Function that returns this process's rows of one batch as arrays."""


def reader(examples: Any, collate: Collate | None) -> Read:
    """Return the function that reads the parts of a batch of `examples`."""
    takes_length = collate is not None and takes(collate, "length")
    _check(examples, collate, takes_length)

    def read_parts(parts: Sequence[Part]) -> PyTree:
        lengths = [part.length for part in parts if part.length is not None]
        local_parts = [part for part in parts if part.ids.size]
        if not lengths:
            return read(local_parts, collate)
        local_parts = [part._replace(length=max(lengths)) for part in local_parts]
        return read(local_parts, partial(collate, length=max(lengths)) if collate and takes_length else collate)

    return read_parts


def _check(examples: Any, collate: Collate | None, takes_length: bool) -> None:
    if isinstance(examples, Batched) and collate is not None:
        raise ExamplesError(
            "a collate makes a batch of examples, but mw.data.Batched already yields batches.\n"
            "  Leave out the collate, or let the loader call it."
        )
    if isinstance(examples, Bucketed) and not examples.pad and not takes_length:
        raise ExamplesError(
            "mw.data.Bucketed has no `pad`, so that processes cannot agree on the shape of a batch.\n"
            '  Give pad={"tokens": 0}, or a collate that takes `length` and pads to it: '
            "collate(examples, length)."
        )
    if takes_length and not isinstance(examples, Bucketed):
        raise ExamplesError(
            "the collate takes `length`, which only mw.data.Bucketed(examples, lengths, buckets) gives."
        )


def shapes_of(examples: Any, read: Read) -> list[PyTree]:
    """Return rows, as structs, of each shape that batches of `examples` are known to have."""
    if isinstance(examples, Batched):
        return [tree.abstract(batch) for batch in examples.shapes]
    if not isinstance(examples, Bucketed):
        return []
    first = [(int(length), ids[:1]) for length, ids in zip(examples.buckets, examples.members, strict=True)]
    return [tree.abstract(read([Part(examples, ids, length=length)])) for length, ids in first if ids.size]


def without(shapes: Sequence[PyTree], rows: PyTree) -> list[PyTree]:
    """Return the shapes that differ from that of `rows`, whatever their number of rows."""
    return [shape for shape in shapes if shapes_text(shape) != shapes_text(rows)]


def shapes_text(rows: PyTree) -> str:
    """Return the shapes of the arrays of a batch, without the number of rows, as text."""
    named = tree.named_leaves(tree.abstract(rows))
    return ", ".join(f"{name} {x.dtype}{list(x.shape[1:])}" for name, x in named.items())
