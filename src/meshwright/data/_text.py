"""Texts as examples: rows of tokens, whose number is not known before all are tokenized."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base._internal import PyTree
from meshwright.data._corpus._indexed_source import Documents
from meshwright.data._corpus._rows import RowStore
from meshwright.data._corpus._store import tokenized
from meshwright.errors import UsageError

_AT_ONCE = 64


@dataclass(frozen=True)
class Text:
    """Rows of tokens that `text` returns. Iterating over it yields the rows one by one, in a fixed order."""

    rows: RowStore = field(repr=False)
    """The rows."""
    epoch: int = 0
    """Number of the first epoch."""

    def __iter__(self) -> Iterator[PyTree]:
        start = 0
        while True:
            ends, is_complete = self.rows.ends(start)
            stop = int(ends[-1]) if len(ends) else 0
            if stop <= start and is_complete:
                return
            some = self.rows.rows(np.arange(start, min(stop, start + _AT_ONCE)))
            count = len(some["tokens"])
            for i in range(count):
                yield {name: array[i] for name, array in some.items()}
            start += count

    def of_epoch(self, epoch: int) -> "Text":
        """Return the same rows, with the order that they have from an epoch on."""
        return replace(self, epoch=epoch)


def text(
    paths: str | Path | Iterable[str | Path] | Documents,
    *,
    tokenizer: Any,
    length: int,
    pack: bool = True,
    field: str = "text",
    separator: str | None = None,
    begin: str | int | None = None,
    end: str | int | None = None,
    store: str | Path | None = None,
) -> Text:
    """Return texts as examples: rows of `length` tokens.

    Another process tokenizes, and keeps the tokens; training begins with the first of them, however large the
    texts are. A second run with the same texts, tokenizer and settings uses the same tokens.

    Rows are filled with whole documents, to 99 % and more. Documents are cut where they are longer than a
    row, and a few to fill gaps. Each token is in one row, and each row comes once in an epoch. The order is a
    function of the seed and a count of rows: in the first epoch it is random within blocks of documents that
    follow each other (the first has 2**17 tokens, later ones up to 2**23), and in later ones over all rows.

    A row has `tokens`, `segments` (the documents in it, from 1; 0 is padding), `positions` (from 0 in each
    document), all int32[length], and `weights` (1 for each token, 0 for padding), float32[length]. Documents
    may be chats, lists of messages, if the tokenizer is `mw.data.chat(…)`; then `weights` is 1 only for what
    the assistant wrote. The field or column `tools` beside them has the tools that the assistant may call.

    Args:
      paths: Files, directories, patterns and URLs of JSONL, Parquet, plain text, data sets that `datasets`
        saved, and tar archives, see `mw.data.files_of`. Or an object whose items are the texts, and that
        can be indexed: a `datasets.Dataset`, a `MapDataset` of grain. It is known by its size and by up to
        10,000 items.
      tokenizer: The tokenizer: of the package `tokenizers`, a fast one of `transformers`, the path of a
        `tokenizer.json` or of a directory with one, `mw.lm.Bytes()`, or `mw.data.chat(…)`.
      length: Number of tokens of a row.
      pack: False to begin each document in a new row.
      field: The field of a JSON object, or the column of a table, with the text, or with tokens.
      separator: The text between two documents of a `.txt` file; without it, a file is one document.
      begin: A token before each document, by its text or number. Chats have none: their template writes it.
      end: A token after each document, by its text or number. Chats have none, as for `begin`.
      store: The directory of all stores; by default `~/.cache/meshwright/texts`, or below `$XDG_CACHE_HOME`.

    Raises:
      InputError: A file is missing; or, when rows are read, damaged: the message names file and line.
      UsageError: A file is of no known kind, the tokenizer cannot be used, or `length` is not positive.

    Example:
      >>> import pathlib
      >>> _ = pathlib.Path("a.txt").write_text("one. two. three.")
      >>> texts = mw.data.text("a.txt", tokenizer=mw.lm.Bytes(), length=8, separator=".", store="tokens")
      >>> for row in texts:
      ...     print(row["tokens"], row["segments"])
      [111 110 101  32 116 119 111   0] [1 1 1 2 2 2 2 0]
      [ 32 116 104 114 101 101   0   0] [1 1 1 1 1 1 0 0]
    """
    if length < 1:
        raise UsageError(f"length={length}: a row has at least one token.")
    settings = {"field": field, "separator": separator, "begin": begin, "end": end, "store": store}
    return Text(RowStore(tokenized(paths, tokenizer, **settings), length, pack))
