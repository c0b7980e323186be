"""`meshwright convert`: a checkpoint in another format or dtype, under other names, or a part of one."""

import argparse
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from meshwright.addresses import is_address
from meshwright.checkpoint import (
    Opened,
    Source,
    as_source,
    called_as_ours,
    export_npz,
    export_safetensors,
    export_seqax,
    export_t5x,
    open_source,
    rewritten,
    subtree,
    t5x_names,
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
    _refuse_within(source, options.destination)
    arrays = rewritten(changed(source), dtype=options.dtype, only=options.only)
    left_out = _left_out(arrays, options.to)
    made = _written(source, changed, arrays, options)
    some = ", ".join(left_out[:5]) + (", …" if left_out[5:] else "")
    lost = f"\nleft out, as {options.to} has no place for them: {some}" if left_out else ""
    return f"wrote {made}{lost}", {"source": str(source), "checkpoint": made, "left_out": left_out}


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


def _refuse_within(source: Opened, destination: str) -> None:
    """Raise if the destination is the checkpoint that is read, or lies in it.

    Raises:
      UsageError: it does.
    """
    places = (str(source.path), destination)
    read, written = (place if is_address(place) else os.path.realpath(place) for place in places)
    if f"{written}/".startswith(f"{read}/") and not Path(read).is_file():
        raise UsageError(f"{destination} lies in {source.path}, which is read: give another destination.")


def _left_out(arrays: Source, to: str | None) -> list[str]:
    """Return the arrays that the format has no place for."""
    return [name for name in arrays.arrays() if to == "t5x" and t5x_names(name) is None]


def _changes(options: argparse.Namespace) -> Callable[[Source], Source]:
    """Return what makes the arrays that are to be written, by our names, of those that are there."""
    if options.map == "hugging-face":
        cfg = hugging_face.config(_described(options))
        return lambda source: _under("params", hugging_face.to_ours(_part(source, options), cfg))
    return lambda source: _part(called_as_ours(source), options)


def _part(source: Source, options: argparse.Namespace) -> Source:
    """Return the subtree that is asked for; for Hugging Face, the parameters, where it is a run's state."""
    is_state = any(name.startswith("params/") for name in source.arrays())
    default = "params" if options.map == TO_THEIRS and is_state else None
    prefix = default if options.subtree is None else options.subtree
    return source if prefix is None else subtree(source, prefix)


def _described(options: argparse.Namespace) -> Path:
    """Return where the model's `config.json` is: beside its files, if it is not said."""
    place = Path(options.config or options.source)
    return place.parent if place.suffix == ".safetensors" else place


def _under(prefix: str, source: Source) -> Source:
    return as_source({f"{prefix}/{name}": array for name, array in source.arrays().items()}, str(source))


def _written(
    source: Opened, changed: Callable[[Source], Source], arrays: Source, options: argparse.Namespace
) -> str:
    """Write it in the format that is asked for, and return where it is."""
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
        case "seqax":
            return str(export_seqax(arrays, options.destination, step=source.step or 0))
    chosen = {"dtype": options.dtype, "only": options.only}
    return str(convert_checkpoint(source, options.destination, transform=changed, **chosen))
