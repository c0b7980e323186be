"""Records, as readers return them: a document's number in its file, its value, and the tools of a chat."""

from collections.abc import Mapping
from typing import Any, NamedTuple

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
