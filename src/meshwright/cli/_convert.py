"""`meshwright convert`: write a checkpoint in another format, dtype or naming, or only a part of it."""

import argparse
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.base._internal import is_address
from meshwright.checkpoints._internal import (
    Opened,
    Source,
    checkpoints_of,
    export_npz,
    export_safetensors,
    export_seqax,
    export_t5x,
    open_source,
    subtree,
    t5x_names,
    with_changes,
    with_native_names,
)
from meshwright.checkpoints._internal import convert as convert_checkpoint
from meshwright.cli._checkpoint_option import step_asked
from meshwright.cli._map import HUGGING_FACE, TO, is_back, is_hugging_face, is_t5x, to_ours, to_theirs
from meshwright.cli._train import Result
from meshwright.engine._internal import has_averages, open_averages
from meshwright.errors import UsageError, listed
from meshwright.lm._internal import hugging_face, t5x

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def convert(options: argparse.Namespace) -> Result:
    """Write a converted copy of the checkpoint to the destination."""
    _check(options)
    _give_memory_back_at_once()
    changed = _changes(options)
    source = open_source(checkpoints_of(options.source), step=step_asked(options, options.source))
    described = _described(options, source)
    _refuse_within(source, options.destination)
    # With --map to-…, arrays were already selected above, by their Meshwright names, which are gone here.
    chosen = {} if is_back(options) else _chosen(options)
    made, left_out = _written(source, changed, chosen, options, described)
    lost = f"\nleft out, because {options.to} cannot store them: {listed(left_out)}" if left_out else ""
    return f"wrote {made}{lost}{_of_averages(options, source)}", {
        "source": str(source),
        "checkpoint": made,
        "left_out": left_out,
    }


def _of_averages(options: argparse.Namespace, source: Opened) -> str:
    """Return a hint where the best checkpoint was chosen by scores that averages have, not the parameters."""
    if options.best is None or options.averages or not has_averages(source):
        return ""
    return (
        "\nthe run kept averages, which were evaluated: --averages writes them in the place of the parameters"
    )


def _check(options: argparse.Namespace) -> None:
    if is_back(options) and is_hugging_face(options) and options.to not in (None, "safetensors"):
        raise UsageError(f"--map {options.map} always writes safetensors. Leave out --to {options.to}.")
    if options.config and not is_hugging_face(options):
        raise UsageError(
            f"--config has no effect without --map {HUGGING_FACE} or --map {TO}{HUGGING_FACE}. Add one."
        )


def _described(options: argparse.Namespace, source: Source) -> Any:
    """Return what describes the model to write for Hugging Face: `--config`, or a T5 of T5X itself."""
    if options.config or not (is_back(options) and is_hugging_face(options)):
        return options.config
    if not t5x.recognises(source):
        raise UsageError(
            f"--map {options.map} needs the model's config.json: --config FILE, or its directory."
        )
    return hugging_face.config_json(t5x.config(source))


def _usual_format(options: argparse.Namespace) -> str:
    if not is_back(options):
        return "native"
    return "t5x" if is_t5x(options) else "safetensors"


def _give_memory_back_at_once() -> None:
    """Make glibc return the memory of each large array to the system as soon as the array is freed.

    By default glibc keeps freed arrays in its heaps, in holes that later arrays do not fit: up to 120 MB in
    all. Other C libraries do not have this call, and are left alone.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def _refuse_within(source: Opened, destination: str) -> None:
    """Refuse a destination that is the checkpoint being read, or lies inside it."""
    places = (str(source.path), destination)
    read, written = (place if is_address(place) else os.path.realpath(place) for place in places)
    if f"{written}/".startswith(f"{read}/") and not Path(read).is_file():
        raise UsageError(
            f"the destination {destination} is inside the checkpoint to convert, {source.path}. Give a "
            "destination outside it."
        )


def _changes(options: argparse.Namespace) -> Callable[[Source], Source]:
    """Return the function that turns the arrays of the source into those to write, under their new names."""
    renamed = _renaming(options)
    return (lambda source: renamed(open_averages(source))) if options.averages else renamed


def _renaming(options: argparse.Namespace) -> Callable[[Source], Source]:
    if options.map is None:
        return lambda source: _below(options.subtree, with_native_names(source))
    if is_back(options):
        renamed = to_theirs(options, **_chosen(options))
        return lambda source: renamed(_below(options.subtree, with_native_names(source)))
    renamed = to_ours(options)
    return lambda source: renamed(_below(options.subtree, source))


def _chosen(options: argparse.Namespace) -> dict[str, str | None]:
    return {"dtype": options.dtype, "only": options.only}


def _below(prefix: str | None, source: Source) -> Source:
    return source if prefix is None else subtree(source, prefix)


def _written(
    source: Opened,
    changed: Callable[[Source], Source],
    chosen: dict[str, str | None],
    options: argparse.Namespace,
    described: Any,
) -> tuple[str, list[str]]:
    """Write the checkpoint in the requested format; return its path, and the arrays that it cannot store."""
    to = options.to or _usual_format(options)
    if to == "native":
        return str(convert_checkpoint(source, options.destination, transform=changed, **chosen)), []
    arrays = with_changes(changed(source), **chosen)
    if is_back(options) and is_hugging_face(options):
        hugging_face.export_model(arrays, options.destination, described)
        return options.destination, []
    match to:
        case "safetensors":
            export_safetensors(arrays, options.destination)
            return options.destination, []
        case "npz":
            return str(export_npz(arrays, options.destination)), []
        case "t5x":
            left_out = [name for name in arrays.arrays() if t5x_names(name) is None]
            return str(export_t5x(arrays, options.destination, step=source.step or 0)), left_out
        case _:
            return str(export_seqax(arrays, options.destination, step=source.step or 0)), []
