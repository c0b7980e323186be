"""The names of `data` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.data._batches import Batches, batches
    from meshwright.data._collate import Collate
    from meshwright.data._corpus._documents import each_document
    from meshwright.data._corpus._store import tokenized
    from meshwright.data._device import as_global, local_rows
    from meshwright.data._kinds import by_epoch, is_indexed
    from meshwright.data._order import examples_at, record_ids
    from meshwright.data._padded import (
        batch_size_of,
        each_example,
        numbered_batches,
        padded_batches,
        some_rows,
    )
    from meshwright.data._samples import num_epochs_of, of_epoch, readable_again
    from meshwright.data._source import as_source, facts_of, num_examples, read_rows
    from meshwright.data._tokens._chat import Chat, Encoded, chat
    from meshwright.data._tokens._folder import check_keys, end_tokens
else:
    __getattr__, __dir__ = lazy_names(__name__)
