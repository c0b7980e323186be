"""Documents in tar archives, as the library WebDataset has them.

    000000.txt       the text of sample 000000
    000000.json      or an object, of which one field is the text
    000000.jpg       others are passed over
    000001.txt       …

Files of one sample follow each other, and their names are the same up to the first dot after the last slash.
"""

import codecs
from collections.abc import Iterator
from itertools import groupby

from meshwright.base._internal import parse_object
from meshwright.data._corpus._files import File
from meshwright.data._corpus._record import Record, record_of
from meshwright.data._corpus._streams import LONGEST, decompressed, naming
from meshwright.data._corpus._tar import Member, members
from meshwright.errors import ExamplesError


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
