"""`meshwright runs`: list the runs below a directory or URL."""

import argparse
from pathlib import PurePath

from meshwright.base._internal import is_address, local_copy, screen_width
from meshwright.cli._train import Result
from meshwright.errors import InputError
from meshwright.report._internal import list_runs, runs_table, sort_runs

_SMALL = (".json", ".jsonl", ".log", ".txt")
"""Endings of the files that tell a run's status. Only these are copied from a store."""


def runs(options: argparse.Namespace) -> Result:
    """List the runs, the most recent report first, or the best by a score."""
    place = options.directory
    with local_copy(place, _is_small) as directory:
        if not directory.is_dir():
            raise InputError(
                f"there is no directory {place}. Give the one that contains your runs: `meshwright runs DIR`."
            )
        found = list_runs(directory, place if is_address(place) else None)
    if not found:
        return f"no runs below {place}", {"runs": found}
    ordered = sort_runs(found, options.sort) if options.sort else found
    columns = [name.strip() for name in options.columns.split(",") if name.strip()]
    table = runs_table(ordered, by=options.sort, columns=columns, width=screen_width())
    return table, {"runs": ordered}


def _is_small(name: str) -> bool:
    return name.endswith(_SMALL) and "outputs" not in PurePath(name).parts
