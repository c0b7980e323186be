"""Documents in files of text: one in each line, as JSON, or one in each file or between separators."""

import codecs
from collections.abc import Iterator
from typing import Any, BinaryIO

from meshwright.base._internal import parse_object
from meshwright.data._corpus._files import File
from meshwright.data._corpus._record import Record, record_of
from meshwright.data._corpus._streams import LONGEST, decompressed, naming
from meshwright.errors import ExamplesError

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
