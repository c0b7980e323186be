"""`meshwright report`: write the page of a run, or a page that compares several."""

import argparse
import contextlib

from meshwright.base import _internal as base
from meshwright.cli._parser import Commands, Result
from meshwright.report import _internal as pages

COMPARISON = "comparison.html"


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add(
        "report",
        report,
    )
    command.add_argument("runs", nargs="+", metavar="RUN", help="the directory or URL of a run")
    command.add_argument(
        "--to",
        metavar="FILE",
        help="file to write the page to (default: report.html in the run; for several runs, comparison.html "
        "in the current directory)",
    )


def report(options: argparse.Namespace) -> Result:
    """Write the page and print a summary of it."""
    with contextlib.ExitStack() as copied:
        runs = [pages.read_run(copied.enter_context(base.local_copy(place)), place) for place in options.runs]
        if len(runs) == 1:
            to = options.to or base.join(options.runs[0], pages.PAGE)
            pages.write_page(runs[0], to)
            text, document = pages.summary(runs[0], width=base.screen_width()), pages.document(runs[0])
        else:
            to = options.to or COMPARISON
            pages.write_comparison(runs, to)
            comparison = pages.compare(runs)
            text, document = (
                pages.comparison_text(comparison, width=base.screen_width()),
                pages.comparison_document(comparison),
            )
    return f"{text}\n\n{to}", {"report": to, **document}
