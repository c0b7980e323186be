"""Batches of examples, in an order that is a pure function of a counter.

`_source` reads examples, `_order` shuffles them, `_stretches` and `_samples` run over epochs, and `_batches`
makes global batches of them; `_padded` is for evaluation. May import `process` and the ground floor. To
support another kind of examples, add it to `_samples` (training) and `_ordered` (evaluation).
"""

from meshwright.input._batched import Batched
from meshwright.input._batches import Batches, batches
from meshwright.input._bucketed import Bucketed
from meshwright.input._collate import Collate
from meshwright.input._device import as_global, local_rows
from meshwright.input._facts import facts_of
from meshwright.input._kinds import by_epoch, is_indexed
from meshwright.input._mapped import mapped
from meshwright.input._mixture import Mixture, mixture
from meshwright.input._order import examples_at, record_ids
from meshwright.input._ordered import each_example
from meshwright.input._padded import batch_size_of, numbered_batches, padded_batches, some_rows
from meshwright.input._protocol import DataIterator, Source
from meshwright.input._samples import num_epochs_of, of_epoch, readable_again
from meshwright.input._source import Arrays, as_source, num_examples, read_rows
from meshwright.input._text import Text, text

__all__ = [
    "Arrays",
    "Batched",
    "Batches",
    "Bucketed",
    "Collate",
    "DataIterator",
    "Mixture",
    "Source",
    "Text",
    "as_global",
    "as_source",
    "batch_size_of",
    "batches",
    "by_epoch",
    "each_example",
    "examples_at",
    "facts_of",
    "is_indexed",
    "local_rows",
    "mapped",
    "mixture",
    "num_epochs_of",
    "num_examples",
    "numbered_batches",
    "of_epoch",
    "padded_batches",
    "read_rows",
    "readable_again",
    "record_ids",
    "some_rows",
    "text",
]
