"""`meshwright convert`: a checkpoint in another format or dtype, under other names, or a part of one."""

import argparse
from collections.abc import Callable
from functools import partial

from meshwright.checkpoint import (
    Opened,
    Source,
    export_npz,
    export_safetensors,
    export_seqax,
    export_t5x,
    open_source,
    rewritten,
    subtree,
)
from meshwright.checkpoint import convert as convert_checkpoint
from meshwright.cli._map import HUGGING_FACE, TO, is_back, is_hugging_face, to_ours, to_theirs
from meshwright.cli._train import Result
from meshwright.errors import UsageError
from meshwright.experiment import checkpoints_of
from meshwright.models import hugging_face


def convert(options: argparse.Namespace) -> Result:
    """Write the checkpoint anew, at the destination.

    Raises:
      UsageError: options contradict each other, or fit nothing.
      CheckpointError: there is none, it is damaged, or is not of the model that `config.json` describes.
    """
    _check(options)
    changed = _changes(options)
    source = open_source(checkpoints_of(options.source))
    made = _written(source, changed, options)
    return f"wrote {made}", {"source": str(source), "checkpoint": made}


def _check(options: argparse.Namespace) -> None:
    theirs = is_back(options) and is_hugging_face(options)
    if theirs and not options.config:
        raise UsageError(
            f"--map {options.map} needs --config: the config.json of the model, or a directory with it."
        )
    if theirs and options.to not in (None, "safetensors"):
        raise UsageError(f"--map {options.map} writes safetensors, not {options.to}.")
    if options.config and not is_hugging_face(options):
        raise UsageError(f"--config is for --map: {HUGGING_FACE}, or {TO}{HUGGING_FACE}.")


def _changes(options: argparse.Namespace) -> Callable[[Source], Source] | None:
    """Return what makes the arrays that are to be written, by their names there, of those that there are."""
    if options.map is None:
        return partial(_below, options.subtree) if options.subtree else None
    renamed = to_theirs(options, **_chosen(options)) if is_back(options) else to_ours(options)
    return lambda source: renamed(_below(options.subtree, source))


def _chosen(options: argparse.Namespace) -> dict[str, str | None]:
    return {"dtype": options.dtype, "only": options.only}


def _below(prefix: str | None, source: Source) -> Source:
    return subtree(source, prefix) if prefix else source


def _written(source: Opened, changed: Callable[[Source], Source] | None, options: argparse.Namespace) -> str:
    """Write it in the format that is asked for, and return where it is."""
    chosen = {} if is_back(options) else _chosen(options)  # of our names
    to = options.to or ("safetensors" if is_back(options) else "native")
    if to == "native":
        return str(convert_checkpoint(source, options.destination, transform=changed, **chosen))
    arrays = rewritten(changed(source) if changed else source, **chosen)
    if is_back(options) and is_hugging_face(options):
        hugging_face.export_model(arrays, options.destination, options.config)
        return options.destination
    match to:
        case "safetensors":
            export_safetensors(arrays, options.destination)
            return options.destination
        case "npz":
            return str(export_npz(arrays, options.destination))
        case "t5x":
            return str(export_t5x(arrays, options.destination, step=source.step or 0))
        case _:
            return str(export_seqax(arrays, options.destination, step=source.step or 0))
