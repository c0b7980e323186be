"""Documents in tar archives, as the library WebDataset has them.

    000000.txt       the text of sample 000000
    000000.json      or an object, of which one field is the text
    000000.jpg       others are passed over
    000001.txt       …

Files of one sample follow each other, and their names are the same up to the first dot after the last slash.

An archive is read on without going back. Python's `tarfile` takes a damaged header in the middle for the end
of the archive. Here it is an error, and so are an archive that has no end, and a name or an extended header
of more than a mebibyte.

    512 bytes   a header: name 0-99, size 124-135 in octal, checksum 148-155, type 156, prefix 345-499
    size bytes  the content, filled up to a multiple of 512 bytes
    …           the next header; at the end, a block of zeros

Source: POSIX.1-2017, `pax`: ustar and pax interchange formats; and GNU tar's long names.
"""

import codecs
from collections.abc import Iterator
from itertools import groupby
from typing import BinaryIO, NamedTuple

from meshwright.base._internal import parse_object
from meshwright.data._corpus._files import File
from meshwright.data._corpus._readers import Record, record_of
from meshwright.data._corpus._streams import LONGEST, decompressed, naming
from meshwright.errors import ExamplesError


class Member(NamedTuple):
    """A file in an archive. Its content must be read before the next one is asked for."""

    name: str
    """Its name, with folders."""
    nbytes: int
    """Its size."""
    stream: BinaryIO
    """The stream that stands at its content."""


def samples(file: File, field: str, start: int) -> Iterator[Record]:
    """Yield the text of each sample, from sample `start` on."""
    number = -1
    with naming(file, lambda: f"sample {number + 1}"), decompressed(file) as stream:
        grouped = groupby(members(stream), key=lambda member: _key(member.name))
        for number, (key, of_sample) in enumerate(grouped):
            texts = {}
            for member in of_sample:
                suffix = member.name[len(key) :].lower()
                if suffix in texts:
                    raise ExamplesError(f"{file.place} has {member.name} twice in a sample.")
                if number >= start and suffix in (".txt", ".json"):
                    texts[suffix] = _content(member, file)
            if number >= start:
                yield _record(number, texts, field, f"{file.place}, sample {key}")


def _key(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}"


def _content(member: Member, file: File) -> bytes:
    if member.nbytes > LONGEST:
        raise ExamplesError(
            f"{file.place}, {member.name}: longer than {LONGEST >> 20} MiB. Divide the document."
        )
    return member.stream.read(member.nbytes)


def _record(number: int, texts: dict[str, bytes], field: str, where: str) -> Record:
    try:
        if ".txt" in texts:
            return Record(number, codecs.decode(texts[".txt"], "utf-8-sig"))
        if ".json" in texts:
            return record_of(number, parse_object(texts[".json"]), field, where)
    except ValueError as error:
        if isinstance(error, ExamplesError):
            raise
        raise ExamplesError(f"{where}: it cannot be read: {error}.") from None
    raise ExamplesError(f"{where}: there is neither a .txt nor a .json with its text.")


_BLOCK = 512
_LONGEST_NAME = 1 << 20
_REGULAR, _LONG_NAME, _EXTENDED = (b"0", b"\0", b"7"), b"L", b"x"
_LINKS = (b"1", b"2")
_MEMBER_KINDS = (*_REGULAR, _LONG_NAME, _EXTENDED, *(bytes([x]) for x in b"123456gK"))


def members(stream: BinaryIO) -> Iterator[Member]:
    """Yield the ordinary files of an archive. A reader may take all of a member's content, or none."""
    name, nbytes = None, None
    while (header := _exactly(stream, _BLOCK)).strip(b"\0"):
        kind, size = _kind_and_size(header)
        if kind in (_LONG_NAME, _EXTENDED):
            if size > _LONGEST_NAME:
                raise ValueError(f"a name in it has {size} bytes")
            content = _exactly(stream, size)
            _skip(stream, -size % _BLOCK)
            if kind == _LONG_NAME:
                name = content.rstrip(b"\0").decode(errors="replace")
            else:
                extended = _extended(content)
                name, nbytes = extended.get("path", name), int(extended.get("size", -1))
                if any(key.startswith("GNU.sparse") for key in extended):
                    raise ValueError("a sparse file cannot be read; write the archive without `tar --sparse`")
            continue
        size = nbytes if nbytes is not None and nbytes >= 0 else size
        if kind in _REGULAR:
            counted = _Counted(stream)
            yield Member(name or _name(header), size, counted)  # type: ignore[arg-type]
            _skip(stream, size - counted.taken)
        elif kind in _LINKS:
            # A link has no content here, so its sample would be missing.
            links = "`tar --dereference --hard-dereference`"
            raise ValueError(f"{name or _name(header)} is a link; write the archive with {links}")
        else:
            _skip(stream, size)
        _skip(stream, -size % _BLOCK)
        name, nbytes = None, None


class _Counted:
    """A stream that counts what is read."""

    def __init__(self, stream: BinaryIO):
        self._stream, self.taken = stream, 0

    def read(self, size: int) -> bytes:
        self.taken += size
        return _exactly(self._stream, size)


def _kind_and_size(header: bytes) -> tuple[bytes, int]:
    # The checksum is computed as if its own field had spaces.
    signed = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if _number(header[148:156]) != signed:
        raise ValueError("the checksum of a tar header is wrong")
    kind = header[156:157]
    if kind not in _MEMBER_KINDS:
        raise ValueError(f"a member of kind {kind!r} cannot be read")
    return kind, _number(header[124:136])


def _number(field: bytes) -> int:
    # GNU tar writes large numbers in binary, with the highest bit set.
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:])
    text = field.strip(b" \0")
    if not text or text.strip(b"01234567"):
        raise ValueError("a number in a tar header is not octal")
    return int(text, 8)


def _name(header: bytes) -> str:
    name, prefix = (
        part.partition(b"\0")[0].decode(errors="replace") for part in (header[:100], header[345:500])
    )
    return f"{prefix}/{name}" if prefix and header[257:262] == b"ustar" and header[262:263] == b"\0" else name


def _extended(content: bytes) -> dict[str, str]:
    """Return the records of a pax header, each of which is `21 path=folder/name` and a line feed."""
    records, start = {}, 0
    while start < len(content):
        length, space, _ = content[start : start + 8].partition(b" ")
        stop = start + int(length)
        key, equals, value = content[start + len(length) + 1 : stop - 1].partition(b"=")
        if not space or not equals or not start < stop <= len(content):
            raise ValueError("an extended tar header is damaged")
        records[key.decode()] = value.decode(errors="replace")
        start = stop
    return records


def _exactly(stream: BinaryIO, size: int) -> bytes:
    parts = []
    while size:
        if not (part := stream.read(size)):
            raise EOFError("it ends too early")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _skip(stream: BinaryIO, size: int) -> None:
    if size < 0:
        raise ValueError("more was read of a member than it has")
    while size:
        size -= len(_exactly(stream, min(size, 1 << 20)))
