"""`meshwright report`: the page of a run, or one of several side by side."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from meshwright import report as room
from meshwright.addresses import is_address, join, local_copy, local_path, put_at
from meshwright.cli._train import Result

COMPARISON = "comparison.html"


def report(options: argparse.Namespace) -> Result:
    """Write the page and tell the same in a few lines.

    Raises:
      InputError: one is no run.
      UsageError: the page cannot be written.
    """
    with contextlib.ExitStack() as copied:
        runs = [room.read_run(copied.enter_context(local_copy(place)), place) for place in options.runs]
        if len(runs) == 1:
            to = options.to or join(options.runs[0], room.PAGE)
            with _file_at(to) as file:
                room.write_page(runs[0], file)
            text, document = room.summary(runs[0]), room.document(runs[0])
        else:
            to = options.to or COMPARISON
            with _file_at(to) as file:
                room.write_comparison(runs, file)
            found = room.compare(runs)
            text, document = room.comparison_text(found), room.comparison_document(found)
    return f"{text}\n\n{to}", {"report": to, **document}


@contextlib.contextmanager
def _file_at(place: str) -> Iterator[Path]:
    """Give the path to write a file to that is to be at a place."""
    if not is_address(place):
        yield local_path(place)
        return
    name = place.rpartition("/")[2]
    with put_at(place.removesuffix(name)) as directory:
        yield directory / name
