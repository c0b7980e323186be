"""`meshwright explain`: where the time of a run goes, and what would help most, from files alone."""

import argparse
from pathlib import Path

from meshwright import report as room
from meshwright.cli._train import Result
from meshwright.documents import parse_object, read_file
from meshwright.errors import InputError
from meshwright.storage import local_copy, local_path
from meshwright.tables import screen_width, wrapped


def explain(options: argparse.Namespace) -> Result:
    """Explain a run by its ledger, its newest profile and, if there is one, a plan of its step.

    Raises:
      InputError: It is not a run, or the file of the plan is not one.
    """
    with local_copy(options.path) as directory:
        run = room.read_run(directory, options.path)
        file = directory / room.PLAN if options.plan is None else local_path(options.plan)
        planned = _planned(file) if options.plan is not None or file.is_file() else None
        found = room.explain(run, planned)
    text = "\n".join(wrapped(line, width=screen_width(), indent="    ") for line in str(found).splitlines())
    return text, {"run": options.path, **found.document()}


def _planned(file: Path) -> room.Planned:
    try:
        return room.planned_from(parse_object(read_file(file)))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{file} is no plan: {error}.\n  `meshwright plan MODULE:FUNCTION --on HARDWARE --json > FILE` "
            "writes one."
        ) from None
