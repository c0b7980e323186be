"""`meshwright pin` and `unpin`: protect a checkpoint from deletion, or stop protecting it."""

import argparse

from meshwright.checkpoints import _internal as formats
from meshwright.checkpoints._internal import checkpoints_of
from meshwright.cli._train import Result
from meshwright.errors import InputError


def pin(options: argparse.Namespace) -> Result:
    """Pin the checkpoint of a step: no retention policy deletes it until it is unpinned."""
    path = _path(options)
    formats.pin(path, options.note)
    return f"{path} is kept until it is unpinned", {"checkpoint": path, "pinned": True}


def unpin(options: argparse.Namespace) -> Result:
    """Unpin the checkpoint of a step: the run's retention policy may delete it again."""
    path = _path(options)
    if not formats.is_pinned(path):
        raise InputError(
            f"{path} is not pinned. `meshwright inspect {options.directory}` shows which checkpoints are."
        )
    formats.unpin(path)
    return f"{path} may be deleted by the run again", {"checkpoint": path, "pinned": False}


def _path(options: argparse.Namespace) -> str:
    return str(formats.find_step(checkpoints_of(options.directory), options.step))
