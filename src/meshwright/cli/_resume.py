"""`meshwright resume`: continue a run with the function and settings that it was started with."""

import argparse

from meshwright.cli._parser import Commands, Result
from meshwright.cli._reopened import STARTED_FROM, recipe_of_run
from meshwright.cli._train import add_strict, add_verbose, start
from meshwright.cli._trust import Purpose

PURPOSE = Purpose(
    command="resume",
    done="resumed",
    doing="resuming",
    in_program="Another program started this run. To continue, start that program again: `{command}`",
    without_file="To continue without it:\n    meshwright train module:function workdir={place}",
    by_another="To start another run: `meshwright train {named} workdir=PATH`",
)


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings("resume", resume)
    command.add_argument("path", metavar="RUN", help="the directory or URL of the run")
    command.add_argument("target", nargs="?", **STARTED_FROM)
    command.add_argument(
        "--from-step",
        type=int,
        metavar="N",
        help="go back to the checkpoint of step N; later checkpoints and reports are set aside",
    )
    add_strict(command)
    add_verbose(command)


def resume(options: argparse.Namespace) -> Result:
    """Run the function and settings that a run's `experiment.json` names, with more settings added."""
    return start(
        recipe_of_run(options, PURPOSE),
        strict=options.strict,
        from_step=options.from_step,
        started=options.started,
        verbose=options.verbose,
    )
