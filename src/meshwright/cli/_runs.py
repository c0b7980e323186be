"""`meshwright runs`: the runs below a directory."""

import argparse

from meshwright.addresses import is_address, local_path
from meshwright.cli._train import Result
from meshwright.errors import InputError, UsageError
from meshwright.report import list_runs, runs_table


def runs(options: argparse.Namespace) -> Result:
    """List the runs, the one that reported last first.

    Raises:
      InputError: there is no such directory.
      UsageError: it is at an address.
    """
    if is_address(options.directory):
        raise UsageError(
            f"runs at addresses are not listed: give a directory of this machine, not {options.directory}.\n"
            "  `meshwright report` and `meshwright inspect` take the address of one run."
        )
    directory = local_path(options.directory)
    if not directory.is_dir():
        raise InputError(f"there is no directory {options.directory}: give the one that your runs are in.")
    found = list_runs(directory)
    return runs_table(found) if found else f"no runs below {options.directory}", {"runs": found}
