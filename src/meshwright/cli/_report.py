"""`meshwright report`: write the page of a run, or a page that compares several."""

import argparse
import contextlib

from meshwright.base._internal import join, local_copy, screen_width
from meshwright.cli._train import Result
from meshwright.report import _internal as room

COMPARISON = "comparison.html"


def report(options: argparse.Namespace) -> Result:
    """Write the page and print a summary of it."""
    with contextlib.ExitStack() as copied:
        runs = [room.read_run(copied.enter_context(local_copy(place)), place) for place in options.runs]
        if len(runs) == 1:
            to = options.to or join(options.runs[0], room.PAGE)
            room.write_page(runs[0], to)
            text, document = room.summary(runs[0], width=screen_width()), room.document(runs[0])
        else:
            to = options.to or COMPARISON
            room.write_comparison(runs, to)
            found = room.compare(runs)
            text, document = (
                room.comparison_text(found, width=screen_width()),
                room.comparison_document(found),
            )
    return f"{text}\n\n{to}", {"report": to, **document}
