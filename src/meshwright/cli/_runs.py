"""`meshwright runs`: list the runs below a directory or URL."""

import argparse
from pathlib import PurePath

from meshwright.base import _internal as base
from meshwright.cli._parser import Commands, Result
from meshwright.errors import InputError
from meshwright.report import _internal as report

_SMALL = (".json", ".jsonl", ".log", ".txt")
"""Endings of the files that tell a run's status. Only these are copied from a store."""


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add("runs", runs)
    command.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        default="runs",
        help="the directory or URL to search (default: runs)",
    )
    command.add_argument(
        "--sort",
        metavar="SCORE",
        help="list the best run by this score first: test/loss, or test/loss:min to say that lower is better "
        "(default: the most recent report first)",
    )
    command.add_argument(
        "--columns",
        metavar="NAME,NAME",
        default="",
        help="show these settings and scores, a column each, in place of the times",
    )


def runs(options: argparse.Namespace) -> Result:
    """List the runs, the most recent report first, or the best by a score."""
    place = options.directory
    with base.local_copy(place, _is_small) as directory:
        if not directory.is_dir():
            raise InputError(
                f"there is no directory {place}. Give the one that contains your runs: `meshwright runs DIR`."
            )
        rows = report.list_runs(directory, place if base.is_address(place) else None)
    if not rows:
        return f"no runs below {place}", {"runs": rows}
    ordered = report.sort_runs(rows, options.sort) if options.sort else rows
    columns = [name.strip() for name in options.columns.split(",") if name.strip()]
    table = report.runs_table(ordered, by=options.sort, columns=columns, width=base.screen_width())
    return table, {"runs": ordered}


def _is_small(name: str) -> bool:
    return name.endswith(_SMALL) and "outputs" not in PurePath(name).parts
