"""`meshwright pin` and `unpin`: a checkpoint that no retention policy removes."""

import argparse

from meshwright import formats
from meshwright.cli._train import Result
from meshwright.engine import checkpoints_of
from meshwright.errors import InputError


def pin(options: argparse.Namespace) -> Result:
    """Keep the checkpoint of a step until it is unpinned."""
    path = _path(options)
    formats.pin(path, options.note)
    return f"{path} is kept until it is unpinned", {"checkpoint": path, "pinned": True}


def unpin(options: argparse.Namespace) -> Result:
    """Leave the checkpoint of a step to the retention policy again.

    Raises:
      InputError: it is not pinned, or not there.
    """
    path = _path(options)
    if not formats.is_pinned(path):
        raise InputError(
            f"{path} is not pinned. `meshwright inspect {options.directory}` lists the checkpoints that are."
        )
    formats.unpin(path)
    return f"{path} is left to the run's retention policy", {"checkpoint": path, "pinned": False}


def _path(options: argparse.Namespace) -> str:
    return str(formats.find_step(checkpoints_of(options.directory), options.step))
