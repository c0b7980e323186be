"""Examples and texts in an exact order, which is a function of a counter.

    _batches, _order, …        batches of any kind of examples, mapped, mixed or grouped by length
    _corpus/                   documents in files of every common kind, and a store of their tokens
    _tokens/                   tokenizers, and chats as tokens and weights

`_corpus` and `_tokens` load no JAX.
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.base._internal import local_copy, mirrored
    from meshwright.data._batched import Batched
    from meshwright.data._bucketed import Bucketed
    from meshwright.data._corpus._documents import documents
    from meshwright.data._corpus._files import files_of
    from meshwright.data._device import local_rows
    from meshwright.data._mapped import mapped
    from meshwright.data._mixture import mixture
    from meshwright.data._padded import numbered_batches, padded_batches
    from meshwright.data._source import Arrays
    from meshwright.data._text import text
    from meshwright.data._tokens._chat import chat
    from meshwright.data._tokens._train import train_tokenizer
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Arrays",
    "Batched",
    "Bucketed",
    "chat",
    "documents",
    "files_of",
    "local_copy",
    "local_rows",
    "mapped",
    "mirrored",
    "mixture",
    "numbered_batches",
    "padded_batches",
    "text",
    "train_tokenizer",
]
