"""`meshwright report`: the page of a run, or one of several side by side."""

import argparse

from meshwright import report as room
from meshwright.cli._train import Result

COMPARISON = "comparison.html"


def report(options: argparse.Namespace) -> Result:
    """Write the page and tell the same in a few lines.

    Raises:
      InputError: one is no run.
      UsageError: the page cannot be written.
    """
    runs = [room.read_run(path) for path in options.runs]
    if len(runs) == 1:
        path = room.write_page(runs[0], options.to)
        text, document = room.summary(runs[0]), room.document(runs[0])
    else:
        path = room.write_comparison(runs, options.to or COMPARISON)
        found = room.compare(runs)
        text, document = room.comparison_text(found), room.comparison_document(found)
    return f"{text}\n\n{path}", {"report": str(path), **document}
