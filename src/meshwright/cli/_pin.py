"""`meshwright pin` and `unpin`: protect a checkpoint from deletion, or stop protecting it."""

import argparse

from meshwright.checkpoints import _internal as checkpoints
from meshwright.cli._parser import Commands, Result
from meshwright.errors import InputError


def add(commands: Commands) -> None:
    """Add the two commands."""
    pins = commands.add("pin", pin)
    unpins = commands.add("unpin", unpin)
    for command in (pins, unpins):
        command.add_argument(
            "directory", metavar="DIRECTORY", help="a run, or the directory of its checkpoints"
        )
        command.add_argument(
            "step", metavar="STEP", type=int, help="the step that the checkpoint was saved after"
        )
    pins.add_argument("--note", metavar="TEXT", default="", help="the reason, saved with the pin")


def pin(options: argparse.Namespace) -> Result:
    """Pin the checkpoint of a step: no retention policy deletes it until it is unpinned."""
    path = _path(options)
    checkpoints.pin(path, options.note)
    return f"{path} is kept until it is unpinned", {"checkpoint": path, "pinned": True}


def unpin(options: argparse.Namespace) -> Result:
    """Unpin the checkpoint of a step: the run's retention policy may delete it again."""
    path = _path(options)
    if not checkpoints.is_pinned(path):
        raise InputError(
            f"{path} is not pinned. `meshwright inspect {options.directory}` shows which checkpoints are."
        )
    checkpoints.unpin(path)
    return f"{path} may be deleted by the run again", {"checkpoint": path, "pinned": False}


def _path(options: argparse.Namespace) -> str:
    return str(checkpoints.find_step(checkpoints.checkpoints_of(options.directory), options.step))
