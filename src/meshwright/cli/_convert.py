"""`meshwright convert`: a checkpoint in another format or dtype, or a part of one."""

import argparse

from meshwright.checkpoint import (
    Opened,
    export_npz,
    export_safetensors,
    export_seqax,
    export_t5x,
    open_source,
    rewritten,
)
from meshwright.checkpoint import convert as convert_checkpoint
from meshwright.cli._train import Result
from meshwright.experiment import checkpoints_of


def convert(options: argparse.Namespace) -> Result:
    """Write the checkpoint anew, at the destination."""
    source = open_source(checkpoints_of(options.source))
    made = _written(source, options)
    return f"wrote {made}", {"source": str(source), "checkpoint": made}


def _written(source: Opened, options: argparse.Namespace) -> str:
    """Write it in the format that is asked for, and return where it is."""
    chosen = {"dtype": options.dtype, "only": options.only}
    match options.to:
        case "native":
            return str(convert_checkpoint(source, options.destination, **chosen))
        case "safetensors":
            export_safetensors(rewritten(source, **chosen), options.destination)
            return options.destination
        case "npz":
            return str(export_npz(rewritten(source, **chosen), options.destination))
        case "t5x":
            return str(export_t5x(rewritten(source, **chosen), options.destination, step=source.step or 0))
        case _:
            return str(export_seqax(rewritten(source, **chosen), options.destination, step=source.step or 0))
