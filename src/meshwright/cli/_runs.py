"""`meshwright runs`: the runs below a directory."""

import argparse
from pathlib import Path

from meshwright.cli._train import Result
from meshwright.errors import InputError
from meshwright.report import list_runs, runs_table


def runs(options: argparse.Namespace) -> Result:
    """List the runs, the one that reported last first.

    Raises:
      InputError: there is no such directory.
    """
    if not Path(options.directory).is_dir():
        raise InputError(f"there is no directory {options.directory}: give the one that your runs are in.")
    found = list_runs(options.directory)
    return runs_table(found) if found else f"no runs below {options.directory}", {"runs": found}
