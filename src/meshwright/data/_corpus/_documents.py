"""The documents of files of any kind, in the order of the files and of the documents in them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from meshwright.base._internal import check_unicode
from meshwright.data._corpus._archives import samples
from meshwright.data._corpus._files import IN_OBJECT, File, files_of
from meshwright.data._corpus._indexed_source import received
from meshwright.data._corpus._readers import Record, arrow_rows, json_lines, parquet_rows, texts
from meshwright.errors import ExamplesError

_NOUNS = {
    "jsonl": "line",
    "txt": "document",
    "parquet": "row",
    "arrow": "row",
    "tar": "sample",
    IN_OBJECT: "document",
}


class Document(NamedTuple):
    """A document, and its position in a file."""

    value: Any
    """Its text, or another value of its field: tokens, or the messages of a chat."""
    file: File
    """Its file."""
    number: int
    """Its line, row or place in the file, from 0."""
    tools: Any = None
    """The tools that the assistant may call, if it is a chat with some."""

    @property
    def where(self) -> str:
        """Return the position as text, for errors: `texts/a.jsonl, line 5`."""
        return f"{self.file.place}, {_NOUNS[self.file.kind]} {self.number + 1}"


def each_document(
    files: Iterable[File],
    *,
    field: str = "text",
    separator: str | None = None,
    start: int = 0,
) -> Iterator[Document]:
    """Yield the documents of files in order. Files are opened one after the other."""
    for file in files:
        for record in _records(file, field, separator, start):
            document = Document(record.value, file, record.number, record.tools)
            _check_text(document)
            yield document
        start = 0


def _check_text(document: Document) -> None:
    """Check a text here, where its line is known: no tokenizer takes half of a surrogate pair."""
    try:
        check_unicode(document.value if isinstance(document.value, str) else "")
    except ValueError as error:
        raise ExamplesError(f"{document.where}: {error}.") from None


def documents(
    paths: str | Path | Iterable[str | Path],
    *,
    field: str = "text",
    separator: str | None = None,
) -> Iterator[Any]:
    r"""Yield the documents in files of any kind that `files_of` finds, in order.

    Args:
      paths: Files, folders, patterns and URLs, as for `files_of`.
      field: The field of a JSON object, or the column of a table, that is the document.
      separator: The text between two documents of a `.txt` file; without it, a file is one document.

    Raises:
      InputError: A file is missing or damaged, or a document has no such field; the message names file and
        line.
      UsageError: A file is of no known kind, or a package that reads it is not installed.

    Example:
      >>> import tempfile, pathlib
      >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.jsonl"
      >>> _ = file.write_text('{"text": "one"}\n{"text": "two"}\n')
      >>> list(mw.data.documents(file))
      ['one', 'two']
    """
    return (document.value for document in each_document(files_of(paths), field=field, separator=separator))


def _records(file: File, field: str, separator: str | None, start: int) -> Iterator[Record]:
    match file.kind:
        case "jsonl":
            return json_lines(file, field, start)
        case "parquet":
            return parquet_rows(file, field, start)
        case "arrow":
            return arrow_rows(file, field, start)
        case "tar":
            return samples(file, field, start)
        case "given":
            return received(start)
        case _:
            return texts(file, separator, start)
