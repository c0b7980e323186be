"""`meshwright verify-resume`: proves that an experiment that is killed and continued gives the same bits.

Each run is a process of the same command, with `--child` and what it is to do as JSON.
"""

import argparse
import json

from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import load_experiment, recipe_of
from meshwright.cli._target import add_target, as_module
from meshwright.debug import _internal as debug
from meshwright.errors import EXIT_DONE, EXIT_FAILED


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings(
        "verify-resume",
        verify_resume,
    )
    add_target(command)
    command.add_argument("--steps", type=int, default=12, metavar="N", help="the steps to run (default: 12)")
    command.add_argument(
        "--seed", type=int, default=0, metavar="N", help="chooses the step of the kill (default: 0)"
    )
    command.add_argument("--child", metavar="JSON", help=argparse.SUPPRESS)


def verify_resume(options: argparse.Namespace) -> Result:
    """Run, kill, continue and compare an experiment. Exit code 1 if the runs differ."""
    if options.child is not None:
        return _child(options)
    proof = debug.verify_resume(
        as_module(options.target),
        options.settings,
        steps=options.steps,
        seed=options.seed,
        fake_devices=options.fake_devices,
    )
    return str(proof), proof.document(), EXIT_DONE if proof.is_equal else EXIT_FAILED


def _child(options: argparse.Namespace) -> int:
    orders = json.loads(options.child)
    options.settings["workdir"] = orders["workdir"]
    _, experiment = load_experiment(recipe_of(options))
    debug.play(experiment, debug.Orders(**orders))
    return EXIT_DONE
