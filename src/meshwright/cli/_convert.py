"""`meshwright convert`: a checkpoint in another format or dtype, under other names, or a part of one."""

import argparse
import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path

from meshwright.checkpoint import (
    Opened,
    Source,
    as_source,
    export_npz,
    export_safetensors,
    export_seqax,
    export_t5x,
    open_source,
    rewritten,
    subtree,
)
from meshwright.checkpoint import convert as convert_checkpoint
from meshwright.cli._train import Result
from meshwright.errors import UsageError
from meshwright.experiment import checkpoints_of
from meshwright.models import hugging_face

TO_THEIRS = "to-hugging-face"

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def convert(options: argparse.Namespace) -> Result:
    """Write the checkpoint anew, at the destination.

    Raises:
      UsageError: options contradict each other, or fit nothing.
      CheckpointError: there is none, it is damaged, or is not of the model that `config.json` describes.
    """
    _check(options)
    _give_memory_back_at_once()
    changed = _changes(options)
    source = open_source(checkpoints_of(options.source))
    made = _written(source, changed, options)
    return f"wrote {made}", {"source": str(source), "checkpoint": made}


def _check(options: argparse.Namespace) -> None:
    if options.map == TO_THEIRS and not options.config:
        raise UsageError(
            f"--map {TO_THEIRS} needs --config: the config.json of the model, or a directory with it."
        )
    if options.map == TO_THEIRS and options.to not in (None, "safetensors"):
        raise UsageError(f"--map {TO_THEIRS} writes safetensors, not {options.to}.")
    if options.config and not options.map:
        raise UsageError(f"--config is for --map: hugging-face, or {TO_THEIRS}.")


def _give_memory_back_at_once() -> None:
    """Have glibc map every large array by itself, so that its memory is the system's again when it is gone.

    Left to itself it keeps them in heaps, whose holes do not fit what comes next: up to 120 MB in all.
    Other C libraries do not know the call.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def _changes(options: argparse.Namespace) -> Callable[[Source], Source] | None:
    """Return what makes the arrays that are to be written, by our names, of those that are there."""
    if options.map == "hugging-face":
        cfg = hugging_face.config(_described(options))
        return lambda source: _under("params", hugging_face.to_ours(_part(source, options), cfg))
    if options.subtree or options.map:
        return lambda source: _part(source, options)
    return None


def _part(source: Source, options: argparse.Namespace) -> Source:
    """Return the subtree that is asked for; for Hugging Face, the parameters, where it is a run's state."""
    is_state = any(name.startswith("params/") for name in source.arrays())
    prefix = options.subtree or ("params" if options.map == TO_THEIRS and is_state else None)
    return subtree(source, prefix) if prefix else source


def _described(options: argparse.Namespace) -> Path:
    """Return where the model's `config.json` is: beside its files, if it is not said."""
    place = Path(options.config or options.source)
    return place.parent if place.suffix == ".safetensors" else place


def _under(prefix: str, source: Source) -> Source:
    return as_source({f"{prefix}/{name}": array for name, array in source.arrays().items()}, str(source))


def _written(source: Opened, changed: Callable[[Source], Source] | None, options: argparse.Namespace) -> str:
    """Write it in the format that is asked for, and return where it is."""
    chosen = {"dtype": options.dtype, "only": options.only}
    if options.map != TO_THEIRS and options.to in (None, "native"):
        return str(convert_checkpoint(source, options.destination, transform=changed, **chosen))
    arrays = rewritten(changed(source) if changed else source, **chosen)
    if options.map == TO_THEIRS:
        hugging_face.export_model(arrays, options.destination, options.config)
        return options.destination
    match options.to:
        case "safetensors":
            export_safetensors(arrays, options.destination)
            return options.destination
        case "npz":
            return str(export_npz(arrays, options.destination))
        case "t5x":
            return str(export_t5x(arrays, options.destination, step=source.step or 0))
        case _:
            return str(export_seqax(arrays, options.destination, step=source.step or 0))
