"""`meshwright nan`: where the first value of a run that is not finite comes from."""

import argparse

from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import load_experiment
from meshwright.cli._reopened import STARTED_FROM, recipe_of_run, refuse_workdir
from meshwright.cli._trust import Purpose
from meshwright.debug import _internal as debug
from meshwright.errors import EXIT_DIVERGED, EXIT_DONE

PURPOSE = Purpose(
    command="nan",
    done="played again",
    doing="playing again",
    in_program="Another program made this run: `{command}`. Call `mw.debug.first_nan(experiment, "
    "run={place!r})` there.",
    without_file="Without it, in Python: `mw.debug.first_nan(experiment, run={place})`.",
    by_another="To play it by another function, in Python: `mw.debug.first_nan(experiment, run=…)`.",
)


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings(
        "nan",
        nan,
    )
    command.add_argument("path", metavar="RUN", help="the directory or URL of the run, which is not changed")
    command.add_argument("target", nargs="?", **STARTED_FROM)
    command.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="the last step to play (default: the last one that the run reported)",
    )
    command.add_argument("--to", metavar="DIR", help="the directory for the batch (default: RUN/nan)")


def nan(options: argparse.Namespace) -> Result:
    """Play a run again from its newest checkpoint to the first step whose result is not finite.

    Exit code 4 if there is such a step.
    """
    refuse_workdir(options)
    _, experiment = load_experiment(recipe_of_run(options, PURPOSE))
    first = debug.first_nan(experiment, options.path, until=options.step, to=options.to)
    if first is None:
        return "every step is finite", {"first_nan": None}, EXIT_DONE
    return str(first), first.document(), EXIT_DIVERGED
