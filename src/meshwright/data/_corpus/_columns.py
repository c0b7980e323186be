"""Documents in tables: one in each row of a Parquet or an Arrow file."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, BinaryIO

from meshwright.data._corpus._files import File
from meshwright.data._corpus._record import TOOLS, Record, is_chat, no_field, without_nulls
from meshwright.data._corpus._streams import naming, opened, pyarrow
from meshwright.errors import ExamplesError

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
