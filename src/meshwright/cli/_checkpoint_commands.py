"""The commands on checkpoints and their options, with the texts that `--help` shows."""

import argparse
from pathlib import Path
from typing import Any

from meshwright.cli._parser import Commands
from meshwright.errors import UsageError


def add_checkpoints(commands: Commands) -> None:
    """Add them."""
    verify = commands.add(
        "verify",
        "_verify",
        "Check every byte of checkpoints against their checksums; exit code 3 if one is damaged.",
    )
    verify.add_argument(
        "path", metavar="PATH", help="a checkpoint, or a run or directory to check all its checkpoints"
    )
    diff = commands.add(
        "diff", "_diff", "Compare two checkpoints array by array; exit code 1 if they differ."
    )
    diff.add_argument("a", metavar="A", help="a run, or a checkpoint of any format")
    diff.add_argument("b", metavar="B", help="the run or checkpoint to compare it with")
    diff.add_argument("--step", **_step("compare"))
    _add_convert(commands)
    pin = commands.add("pin", "_pin", "Keep the checkpoint of a step, so that the run never deletes it.")
    unpin = commands.add("unpin", "_pin", "Undo `pin`, so that the run may delete the checkpoint again.")
    for each in (pin, unpin):
        each.add_argument("directory", metavar="DIRECTORY", help="a run, or the directory of its checkpoints")
        each.add_argument(
            "step", metavar="STEP", type=int, help="the step that the checkpoint was saved after"
        )
    pin.add_argument("--note", metavar="TEXT", default="", help="the reason, saved with the pin")


def _step(verb: str) -> dict[str, Any]:
    return {
        "type": int,
        "metavar": "N",
        "help": f"{verb} the checkpoint of step N (default: the newest)",
    }


def add_which(command: argparse.ArgumentParser, verb: str) -> None:
    """Add the options that choose a checkpoint."""
    which = command.add_mutually_exclusive_group()
    which.add_argument("--step", **_step(verb))
    which.add_argument(
        "--best",
        action=_Best,
        nargs="?",
        const="",
        metavar="SCORE",
        help=f"{verb} the best checkpoint, by SCORE (test/loss) or, if none is given, by the score that "
        "the run keeps its best by; SCORE:min or SCORE:max says which values are best, if nothing else does",
    )


class _Best(argparse.Action):
    """Stores the score after `--best`. If the user wrote the run there, the error says so."""

    def __call__(self, parser: Any, options: Any, value: Any, option: str | None = None) -> None:
        has_run = any(getattr(options, name, None) for name in ("path", "source"))
        if not has_run and value and ("://" in value or Path(value).is_dir()):
            raise UsageError(
                f"{parser.prog} --best takes the name of a score, and {value} is a directory.\n"
                f"  Write the directory first: `{parser.prog} {value} --best`."
            )
        setattr(options, self.dest, value)


def _add_convert(commands: Commands) -> None:
    convert = commands.add(
        "convert", "_convert", "Write a checkpoint in another format, dtype or naming, or only part of it."
    )
    convert.add_argument("source", metavar="SRC", help="a run, or a checkpoint of any format")
    convert.add_argument(
        "destination", metavar="DST", help="the directory to create; with --to npz, the file"
    )
    add_which(convert, "convert")
    convert.add_argument(
        "--to",
        choices=("native", "safetensors", "npz", "seqax", "t5x"),
        help="the format to write (default: native; safetensors with --map to-…; t5x with --map to-t5x…)",
    )
    convert.add_argument(
        "--averages",
        action="store_true",
        help="write the averages that `keep_ema` kept in the place of the parameters",
    )
    convert.add_argument(
        "--map",
        metavar="MAP",
        help="rename arrays: hugging-face (its names to Meshwright's), to-hugging-face (back, as "
        "safetensors; also a T5 of T5X), t5x, to-t5x and to-t5x-scanned (a T5 of T5X), or module:map and "
        "to-module:map for an mw.lm.Map of your own",
    )
    convert.add_argument(
        "--config",
        metavar="PATH",
        help="the Hugging Face model's config.json, or its directory (default: the one in SRC; that of a T5 "
        "of T5X follows from its parameters)",
    )
    _add_selection(convert)


def _add_selection(convert: argparse.ArgumentParser) -> None:
    """Add the options that choose arrays and their dtype."""
    convert.add_argument(
        "--subtree",
        metavar="NAME",
        help="convert only the arrays whose names begin with NAME/, and cut that prefix off",
    )
    convert.add_argument(
        "--dtype", metavar="DTYPE", help="convert the parameters to this dtype, such as bfloat16"
    )
    convert.add_argument(
        "--only",
        metavar="REGEX",
        help="convert only arrays whose Meshwright name, or the last parts of it, match REGEX",
    )
