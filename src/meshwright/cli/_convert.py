"""`meshwright convert`: write a checkpoint in another format, dtype or naming, or only a part of it."""

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.base import _internal as base
from meshwright.checkpoints import _internal as checkpoints
from meshwright.cli._checkpoint import add_which, step_asked
from meshwright.cli._map import HUGGING_FACE, TO, is_back, is_hugging_face, is_t5x, to_ours, to_theirs
from meshwright.cli._parser import Commands, Result
from meshwright.engine import _internal as engine
from meshwright.errors import UsageError, listed
from meshwright.lm import _internal as lm

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add("convert", convert)
    command.add_argument("source", metavar="SRC", help="a run, or a checkpoint of any format")
    command.add_argument(
        "destination", metavar="DST", help="the directory to create; with --to npz, the file"
    )
    add_which(command, "convert")
    command.add_argument(
        "--to",
        choices=("native", "safetensors", "npz", "seqax", "t5x"),
        help="the format to write (default: native; safetensors with --map to-…; t5x with --map to-t5x…)",
    )
    command.add_argument(
        "--averages",
        action="store_true",
        help="write the averages that `keep_ema` kept in the place of the parameters",
    )
    command.add_argument(
        "--map",
        metavar="MAP",
        help="rename arrays: hugging-face (its names to Meshwright's), to-hugging-face (back, as "
        "safetensors; also a T5 of T5X), t5x, to-t5x and to-t5x-scanned (a T5 of T5X), or module:map and "
        "to-module:map for an mw.lm.Map of your own",
    )
    command.add_argument(
        "--config",
        metavar="PATH",
        help="the Hugging Face model's config.json, or its directory (default: the one in SRC; that of a T5 "
        "of T5X follows from its parameters)",
    )
    command.add_argument(
        "--subtree",
        metavar="NAME",
        help="convert only the arrays whose names begin with NAME/, and cut that prefix off",
    )
    command.add_argument(
        "--dtype", metavar="DTYPE", help="convert the parameters to this dtype, such as bfloat16"
    )
    command.add_argument(
        "--only",
        metavar="REGEX",
        help="convert only arrays whose Meshwright name, or the last parts of it, match REGEX",
    )


def convert(options: argparse.Namespace) -> Result:
    """Write a converted copy of the checkpoint to the destination."""
    _check(options)
    _give_memory_back_at_once()
    changed = _changes(options)
    source = checkpoints.open_source(
        checkpoints.checkpoints_of(options.source), step=step_asked(options, options.source)
    )
    described = _described(options, source)
    _refuse_within(source, options.destination)
    # With --map to-…, arrays were already selected above, by their Meshwright names, which are gone here.
    chosen = {} if is_back(options) else _chosen(options)
    written, left_out = _written(source, changed, chosen, options, described)
    lost = f"\nleft out, because {options.to} cannot store them: {listed(left_out)}" if left_out else ""
    return f"wrote {written}{lost}{_of_averages(options, source)}", {
        "source": str(source),
        "checkpoint": written,
        "left_out": left_out,
    }


def _of_averages(options: argparse.Namespace, source: "checkpoints.Opened") -> str:
    """Return a hint where the best checkpoint was chosen by scores that averages have, not the parameters."""
    if options.best is None or options.averages or not engine.has_averages(source):
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


def _described(options: argparse.Namespace, source: "checkpoints.Source") -> Any:
    """Return what describes the model to write for Hugging Face: `--config`, or a T5 of T5X itself."""
    if options.config or not (is_back(options) and is_hugging_face(options)):
        return options.config
    if not lm.t5x.recognises(source):
        raise UsageError(
            f"--map {options.map} needs the model's config.json: --config FILE, or its directory."
        )
    return lm.hugging_face.config_json(lm.t5x.config(source))


def _usual_format(options: argparse.Namespace) -> str:
    if not is_back(options):
        return "native"
    return "t5x" if is_t5x(options) else "safetensors"


def _give_memory_back_at_once() -> None:
    """Make glibc return the memory of each large array to the system as soon as the array is freed.

    By default glibc keeps freed arrays in its heaps, in holes that later arrays do not fit: up to 120 MB in
    all. Other C libraries do not have this call, and are left alone.
    """
    import ctypes

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def _refuse_within(source: "checkpoints.Opened", destination: str) -> None:
    """Refuse a destination that is the checkpoint being read, or lies inside it."""
    places = (str(source.path), destination)
    read, written = (place if base.is_address(place) else os.path.realpath(place) for place in places)
    if f"{written}/".startswith(f"{read}/") and not Path(read).is_file():
        raise UsageError(
            f"the destination {destination} is inside the checkpoint to convert, {source.path}. Give a "
            "destination outside it."
        )


def _changes(options: argparse.Namespace) -> "Callable[[checkpoints.Source], checkpoints.Source]":
    """Return the function that turns the arrays of the source into those to write, under their new names."""
    renamed = _renaming(options)
    return (lambda source: renamed(engine.open_averages(source))) if options.averages else renamed


def _renaming(options: argparse.Namespace) -> "Callable[[checkpoints.Source], checkpoints.Source]":
    if options.map is None:
        return lambda source: _below(options.subtree, checkpoints.with_native_names(source))
    if is_back(options):
        renamed = to_theirs(options, **_chosen(options))
        return lambda source: renamed(_below(options.subtree, checkpoints.with_native_names(source)))
    renamed = to_ours(options)
    return lambda source: renamed(_below(options.subtree, source))


def _chosen(options: argparse.Namespace) -> dict[str, str | None]:
    return {"dtype": options.dtype, "only": options.only}


def _below(prefix: str | None, source: "checkpoints.Source") -> "checkpoints.Source":
    return source if prefix is None else checkpoints.subtree(source, prefix)


def _written(
    source: "checkpoints.Opened",
    changed: "Callable[[checkpoints.Source], checkpoints.Source]",
    chosen: dict[str, str | None],
    options: argparse.Namespace,
    described: Any,
) -> tuple[str, list[str]]:
    """Write the checkpoint in the requested format; return its path, and the arrays that it cannot store."""
    to = options.to or _usual_format(options)
    if to == "native":
        return str(checkpoints.convert(source, options.destination, transform=changed, **chosen)), []
    arrays = checkpoints.with_changes(changed(source), **chosen)
    if is_back(options) and is_hugging_face(options):
        lm.hugging_face.export_model(arrays, options.destination, described)
        return options.destination, []
    match to:
        case "safetensors":
            checkpoints.export_safetensors(arrays, options.destination)
            return options.destination, []
        case "npz":
            return str(checkpoints.export_npz(arrays, options.destination)), []
        case "t5x":
            left_out = [name for name in arrays.arrays() if checkpoints.t5x_names(name) is None]
            return str(checkpoints.export_t5x(arrays, options.destination, step=source.step or 0)), left_out
        case _:
            return str(checkpoints.export_seqax(arrays, options.destination, step=source.step or 0)), []
