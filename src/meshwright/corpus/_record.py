"""What readers return: the number of a document in its file, and its value."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from meshwright.errors import ExamplesError, nearest


class Record(NamedTuple):
    """A document of a file."""

    number: int
    """Its line, row or place in the file, from 0."""
    value: Any
    """Its text, or whatever its field holds."""


def field_of(found: Mapping[str, Any], field: str, where: str) -> Any:
    """Return the value of a field.

    Raises:
      ExamplesError: There is no such field.
    """
    if field not in found:
        raise no_field(field, [*found], where)
    return found[field]


def no_field(field: str, there: list[str], where: str) -> ExamplesError:
    """Return the error of a document without a field."""
    close = nearest(field, there)
    shown = ", ".join(there[:10]) or "nothing"
    return ExamplesError(
        f"{where}: there is no field {field!r}; it has {shown:.200}.\n"
        f"  Name the one with the text: field={close or (there[0] if there else 'text')!r}."
    )
