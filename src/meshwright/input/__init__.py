"""Batches of examples, in an order that is a pure function of a counter."""

from meshwright.input._batches import Batches, batches
from meshwright.input._collate import Collate
from meshwright.input._device import as_global, local_rows
from meshwright.input._facts import facts_of
from meshwright.input._order import record_ids
from meshwright.input._padded import numbered_batches, padded_batches
from meshwright.input._protocol import DataIterator, Source
from meshwright.input._samples import by_epoch
from meshwright.input._source import Arrays, as_source, is_indexed, num_examples, read_rows

__all__ = [
    "Arrays",
    "Batches",
    "Collate",
    "DataIterator",
    "Source",
    "as_global",
    "as_source",
    "batches",
    "by_epoch",
    "facts_of",
    "is_indexed",
    "local_rows",
    "num_examples",
    "numbered_batches",
    "padded_batches",
    "read_rows",
    "record_ids",
]
