"""`meshwright report`: write the page of a run, or a page that compares several."""

import argparse
import contextlib

from meshwright.base._internal import join, local_copy, screen_width
from meshwright.cli._train import Result
from meshwright.report import _internal as pages

COMPARISON = "comparison.html"


def report(options: argparse.Namespace) -> Result:
    """Write the page and print a summary of it."""
    with contextlib.ExitStack() as copied:
        runs = [pages.read_run(copied.enter_context(local_copy(place)), place) for place in options.runs]
        if len(runs) == 1:
            to = options.to or join(options.runs[0], pages.PAGE)
            pages.write_page(runs[0], to)
            text, document = pages.summary(runs[0], width=screen_width()), pages.document(runs[0])
        else:
            to = options.to or COMPARISON
            pages.write_comparison(runs, to)
            found = pages.compare(runs)
            text, document = (
                pages.comparison_text(found, width=screen_width()),
                pages.comparison_document(found),
            )
    return f"{text}\n\n{to}", {"report": to, **document}
