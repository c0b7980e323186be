"""Records, as readers return them, and the readers of files of text and of tables.

A document is a line of JSON; a file of text, or a part of one between separators; or a row of a Parquet or an
Arrow file.
"""

import codecs
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, BinaryIO, NamedTuple

from meshwright.base._internal import parse_object
from meshwright.data._corpus._files import File
from meshwright.data._corpus._streams import LONGEST, decompressed, naming, opened, pyarrow
from meshwright.errors import ExamplesError, nearest


class Record(NamedTuple):
    """A document of a file."""

    number: int
    """Its line, row or place in the file, from 0."""
    value: Any
    """Its text, or another value of its field."""
    tools: Any = None
    """The tools that the assistant may call, if the document is a chat with some."""


TOOLS = "tools"
"""The field with the tools, beside that of a chat."""


def is_chat(value: Any) -> bool:
    """Return whether a document is a list of messages."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def record_of(number: int, entries: Mapping[str, Any], field: str, where: str) -> Record:
    """Return the document in a field of a JSON object."""
    value = field_of(entries, field, where)
    return Record(number, value, entries.get(TOOLS) if is_chat(value) else None)


def without_nulls(value: Any) -> Any:
    """Return a value without entries that are null, which tables have wherever another row has an entry."""
    if isinstance(value, Mapping):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def field_of(entries: Mapping[str, Any], field: str, where: str) -> Any:
    """Return the value of a field."""
    if field not in entries:
        raise no_field(field, [*entries], where)
    return entries[field]


def no_field(field: str, names: list[str], where: str) -> ExamplesError:
    """Return the error of a document without a field."""
    close = nearest(field, names)
    listing = ", ".join(names[:10]) or "nothing"
    return ExamplesError(
        f"{where}: there is no field {field!r}; it has {listing:.200}.\n"
        f"  Name the one with the text: field={repr(close) if close else '…'}."
    )


_BLOCK = 1 << 20


def json_lines(file: File, field: str, start: int) -> Iterator[Record]:
    """Yield the value of a field of each line, a JSON object, from line `start` on, counted from 0.

    Empty lines are passed over.
    """
    for number, line in enumerate(_pieces(file, b"\n", "line")):
        if number >= start and not line.isspace() and line:
            yield record_of(number, _object(file, number, line), field, f"{file.place}, line {number + 1}")


def _object(file: File, number: int, line: bytes) -> dict[str, Any]:
    try:
        return parse_object(codecs.decode(line, "utf-8-sig") if number == 0 else line)
    except ValueError as error:
        hint = "\n  The file must have one object in each line, not a list." if line.startswith(b"[") else ""
        raise ExamplesError(f"{file.place}, line {number + 1}: not a JSON object: {error}.{hint}") from None


def texts(file: File, separator: str | None, start: int) -> Iterator[Record]:
    """Yield the texts between separators, or that of the whole file, from number `start` on.

    Empty ones are passed over.
    """
    pieces = _pieces(file, separator.encode() if separator else None, "document")
    for number, piece in enumerate(pieces):
        if number >= start and piece and not piece.isspace():
            try:
                yield Record(number, codecs.decode(piece, "utf-8-sig" if number == 0 else "utf-8"))
            except UnicodeDecodeError as error:
                raise ExamplesError(
                    f"{file.place}, document {number + 1}: not text in UTF-8: {error}."
                ) from None


def _pieces(file: File, separator: bytes | None, noun: str) -> Iterator[bytes]:
    """Yield what is between separators, without them."""
    number = 0
    with naming(file, lambda: f"{noun} {number + 1}"), decompressed(file) as stream:
        for piece in _split(stream, separator):
            if piece is None:
                raise ExamplesError(
                    f"{file.place}, {noun} {number + 1}: longer than {LONGEST >> 20} MiB.\n"
                    "  Divide it, or, if it is plain text, say what is between documents: separator=…"
                )
            yield piece
            number += 1


def _split(stream: BinaryIO, separator: bytes | None) -> Iterator[bytes | None]:
    """Yield the pieces of a stream; None in place of one that is too long."""
    rest = b""
    while block := stream.read(_BLOCK):
        *whole, rest = (rest + block).split(separator) if separator else [rest + block]
        yield from whole
        if len(rest) > LONGEST:
            yield None
    if rest:
        yield rest


_ROWS = 1024
# Bytes of a column in a group of rows, which readers must decompress as one.
_LARGEST_GROUP = 1 << 33


def parquet_rows(file: File, field: str, start: int) -> Iterator[Record]:
    """Yield the value of a column in each row, from row `start` on."""
    parquet, number = pyarrow("pyarrow.parquet"), start
    with naming(file, lambda: f"row {number + 1}"), closing(opened(file)) as stream:
        table = parquet.ParquetFile(stream)
        _check_column(table.schema_arrow, field, file)
        groups, number = _groups_from(table.metadata, start, file)
        columns = [field, *_tools_column(table.schema_arrow, field)]
        for batch in table.iter_batches(_ROWS, row_groups=groups, columns=columns):
            for record in _rows(batch, field, number):
                if record.number >= start:
                    yield record
            number += batch.num_rows


def _groups_from(metadata: Any, start: int, file: File) -> tuple[list[int], int]:
    """Return the groups of rows that are not wholly before `start`, and the number of their first row."""
    groups, first, first_row = [], 0, 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        if group.total_byte_size > _LARGEST_GROUP:
            raise ExamplesError(
                f"{file.place}: a group of its rows has {group.total_byte_size >> 20} MiB, more than "
                f"{_LARGEST_GROUP >> 20}.\n  Write it again with smaller groups: row_group_size=10_000."
            )
        if first + group.num_rows > start:
            first_row = first_row if groups else first
            groups.append(i)
        first += group.num_rows
    return groups, first_row if groups else first


def arrow_rows(file: File, field: str, start: int) -> Iterator[Record]:
    """Yield the value of a column in each row of an Arrow file or stream, from row `start` on."""
    ipc, number = pyarrow("pyarrow.ipc"), 0
    with naming(file, lambda: f"row {number + 1}"), closing(opened(file)) as stream:
        # The Arrow file format begins with this mark; a stream has none.
        is_file = stream.read(6) == b"ARROW1"
        stream.seek(0)
        reader = ipc.open_file(stream) if is_file else ipc.open_stream(stream)
        _check_column(reader.schema, field, file)
        batches = _file_batches(reader) if is_file else _stream_batches(reader, stream)
        for batch in batches:
            if number + batch.num_rows > start:
                for record in _rows(batch, field, number):
                    if record.number >= start:
                        yield record
            number += batch.num_rows


def _file_batches(reader: Any) -> Iterator[Any]:
    return (reader.get_batch(i) for i in range(reader.num_record_batches))


def _stream_batches(reader: Any, stream: BinaryIO) -> Iterator[Any]:
    """Yield the batches of a stream. pyarrow takes one that was cut between two batches for a whole one."""
    position = stream.tell()
    for batch in reader:
        position = stream.tell()
        yield batch
    if stream.tell() == position:
        raise EOFError("it ends without its mark for the end of a stream")


def _check_column(schema: Any, field: str, file: File) -> None:
    if field not in schema.names:
        raise no_field(field, list(schema.names), file.place)


def _rows(batch: Any, field: str, first: int) -> Iterator[Record]:
    """Yield the rows of a batch. Empty texts are passed over, as in files of text."""
    names = [field, *_tools_column(batch.schema, field)]
    columns = [batch.column(batch.schema.get_field_index(name)) for name in names]
    for column in columns:
        # A damaged column must not be read beyond its end.
        column.validate(full=True)
    for i, (value, *tools) in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
        if value is not None and value != "":
            yield Record(first + i, value, without_nulls(tools[0]) if tools and is_chat(value) else None)


def _tools_column(schema: Any, field: str) -> list[str]:
    """Return the column with tools, if there is one, and if the documents may be chats."""
    is_nested = schema.field(field).type.num_fields > 0
    return [TOOLS] if is_nested and field != TOOLS and TOOLS in schema.names else []
