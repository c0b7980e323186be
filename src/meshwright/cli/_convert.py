"""`meshwright convert`: a checkpoint of another dtype, or of a part of another one."""

import argparse

from meshwright.checkpoint import convert as convert_checkpoint
from meshwright.checkpoint import open_source
from meshwright.cli._train import Result
from meshwright.experiment import checkpoints_of


def convert(options: argparse.Namespace) -> Result:
    """Write the checkpoint anew, below the destination."""
    source = open_source(checkpoints_of(options.source))
    made = convert_checkpoint(source, options.destination, dtype=options.dtype, only=options.only)
    return f"wrote {made}", {"source": str(source), "checkpoint": str(made)}
