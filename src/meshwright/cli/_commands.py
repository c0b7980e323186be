"""The commands and their options, as `meshwright --help` tells of them."""

import argparse
from dataclasses import dataclass
from typing import Any

from meshwright._version import __version__
from meshwright.cli._parser import Commands, Parser

_TARGET: dict[str, Any] = {
    "metavar": "module:function",
    "help": "the function that returns the experiment: gpt:experiment, or gpt.py:experiment",
}


@dataclass(frozen=True)
class Grammar:
    """The parser, and that of each command by its name."""

    top: argparse.ArgumentParser
    commands: dict[str, argparse.ArgumentParser]


def grammar() -> Grammar:
    """Return the grammar. Each command sets `run`: a function from the options to a result."""
    top = Parser(
        prog="meshwright",
        description="Train, checkpoint, evaluate and inspect any JAX model, on one device or thousands.",
        epilog="exit codes: 0 done, 1 failed, 2 usage (nothing was started), 3 input missing or damaged, "
        "4 diverged, 5 hung, 6 another process of the run is gone (run it again), "
        "75 stopped with the state saved (run it again), 130 Ctrl-C",
    )
    top.add_argument("--version", action="version", version=f"meshwright {__version__}")
    commands = Commands(top)
    _add_runs(commands)
    _add_plan(commands)
    _add_looks_at_runs(commands)
    _add_checkpoints(commands)
    _add_machines(commands)
    return Grammar(top, commands.parsers)


def _add_runs(commands: Commands) -> None:
    demo = commands.with_settings("demo", "_demo", "Train a small real model on virtual devices, offline.")
    demo.add_argument("name", nargs="?", choices=("digits", "text"), default="digits", help="default: digits")
    demo.add_argument(
        "--kill",
        action="store_true",
        help="kill the training half way, then continue it with a second process",
    )
    train = commands.with_settings("train", "_train", "Train an experiment, or continue its run.")
    train.add_argument("target", **_TARGET)
    resume = commands.with_settings("resume", "_train", "Continue a run as it was started.")
    resume.add_argument("path", metavar="RUN", help="its run directory or URL")
    resume.add_argument(
        "target",
        metavar="module:function",
        nargs="?",
        help="the function that the run was started from; needed only where other users can write to RUN",
    )
    resume.add_argument(
        "--from-step",
        type=int,
        metavar="N",
        help="go back to the checkpoint of step N; later checkpoints and reports are set aside, and kept",
    )
    for made in (train, resume):
        made.add_argument(
            "--strict",
            action="store_true",
            help="refuse to continue a run with settings other than those it was trained with so far",
        )
    for made in (demo, train, resume):
        made.add_argument(
            "--verbose", action="store_true", help="show every array and every check before the first step"
        )
    _add_show(commands)


def _add_show(commands: Commands) -> None:
    show = commands.with_settings("show", "_show", "Print all settings of an experiment, without running it.")
    show.add_argument("target", **_TARGET)
    show.add_argument(
        "--against",
        metavar="OTHER",
        help="print only what differs from OTHER: a module:function, a run directory or its experiment.txt; "
        "exit code 1 if anything differs",
    )


def _add_plan(commands: Commands) -> None:
    plan = commands.with_settings(
        "plan",
        "_plan",
        "Estimate memory, communication and time of a step on hardware you do not have.",
    )
    plan.add_argument("target", **_TARGET)
    plan.add_argument(
        "--on",
        required=True,
        metavar="HARDWARE",
        help="h100:64x8 (64 hosts of 8 GPUs), v5e:16x16 (a TPU slice of this topology) or cpu:8",
    )
    plan.add_argument(
        "--search", action="store_true", help="try every mesh that divides the batch and the model; rank them"
    )
    plan.add_argument(
        "--traced",
        action="store_true",
        help="only trace the step, never compile it: faster, and less exact",
    )
    plan.add_argument(
        "--bandwidth",
        type=float,
        default=1.0,
        metavar="GB/s",
        help="how fast one host writes a checkpoint, in GB per second (default: 1)",
    )
    plan.add_argument("--compile-to", metavar="FILE", help=argparse.SUPPRESS)  # see cli/_plan.py


def _add_looks_at_runs(commands: Commands) -> None:
    inspect = commands.add("inspect", "_inspect", "Show what a run or a checkpoint holds.")
    inspect.add_argument("path", metavar="PATH", help="a run, or a checkpoint of any format")
    _add_step(inspect, "show")
    report = commands.add(
        "report", "_report", "Write an HTML page about a run, or one that compares several; print a summary."
    )
    report.add_argument("runs", nargs="+", metavar="RUN", help="the directory or URL of a run")
    report.add_argument(
        "--to",
        metavar="FILE",
        help="the page to write (default: report.html in the run; for several, comparison.html here)",
    )
    runs = commands.add("runs", "_runs", "List the runs under a directory or URL: state, step, loss, score.")
    runs.add_argument("directory", nargs="?", metavar="DIR", default="runs", help="default: runs")
    trace = commands.add("trace", "_trace", "Show where the time of profiled steps went.")
    trace.add_argument("path", metavar="RUN", help="a run, a directory of profiles, or an .xplane.pb file")
    trace.add_argument(
        "--step", type=int, metavar="N", help="the profile that begins at step N (default: the newest)"
    )
    hlo = commands.with_settings(
        "hlo", "_hlo", "Compile an experiment's step and write the optimised program (HLO)."
    )
    hlo.add_argument("target", **_TARGET)
    hlo.add_argument(
        "--to",
        metavar="DIR",
        required=True,
        help="directory or URL for the HLO text, and its graph as DOT and SVG",
    )


def _add_checkpoints(commands: Commands) -> None:
    verify = commands.add(
        "verify",
        "_verify",
        "Check every byte of checkpoints against checksums; exit code 3 if one is damaged.",
    )
    verify.add_argument(
        "path", metavar="PATH", help="a checkpoint; or a run or directory, for all that it has"
    )
    diff = commands.add(
        "diff", "_diff", "Compare two checkpoints array by array; exit code 1 if they differ."
    )
    diff.add_argument("a", metavar="A", help="a run, or a checkpoint of any format")
    diff.add_argument("b", metavar="B", help="another")
    _add_step(diff, "compare")
    _add_convert(commands)
    pin = commands.add("pin", "_pin", "Keep the checkpoint of a step: the run never deletes it.")
    unpin = commands.add("unpin", "_pin", "Undo `pin`: the run may delete the checkpoint again.")
    for each in (pin, unpin):
        each.add_argument("directory", metavar="DIRECTORY", help="a run, or its checkpoints")
        each.add_argument(
            "step", metavar="STEP", type=int, help="the step that the checkpoint was saved after"
        )
    pin.add_argument("--note", metavar="TEXT", default="", help="why it is kept; saved with the pin")


def _add_step(command: argparse.ArgumentParser, verb: str) -> None:
    command.add_argument(
        "--step", type=int, metavar="N", help=f"{verb} the checkpoint of step N (default: the newest)"
    )


def _add_convert(commands: Commands) -> None:
    convert = commands.add(
        "convert", "_convert", "Write a checkpoint in another format, dtype or naming, or only a part of it."
    )
    convert.add_argument("source", metavar="SRC", help="a run, or a checkpoint of any format")
    convert.add_argument("destination", metavar="DST", help="a new directory; with --to npz, a file")
    _add_step(convert, "convert")
    convert.add_argument(
        "--to",
        choices=("native", "safetensors", "npz", "seqax", "t5x"),
        help="the format to write (default: native; safetensors with --map to-…)",
    )
    convert.add_argument(
        "--map",
        metavar="MAP",
        help="rename arrays: hugging-face (its names become Meshwright's), to-hugging-face (back, as "
        "safetensors), or module:map and to-module:map for a mw.models.Map of your own",
    )
    convert.add_argument(
        "--config",
        metavar="PLACE",
        help="config.json of the Hugging Face model, or its directory (default: the one beside SRC)",
    )
    convert.add_argument(
        "--subtree", metavar="NAME", help="convert only the arrays below NAME, as params; NAME/ is cut off"
    )
    convert.add_argument("--dtype", metavar="D", help="cast the parameters to this dtype, as bfloat16")
    convert.add_argument(
        "--only", metavar="REGEX", help="convert only arrays whose Meshwright name, or its end, matches REGEX"
    )


def _add_machines(commands: Commands) -> None:
    commands.add(
        "doctor",
        "_doctor",
        "Check this machine: versions, devices, processes, compiling, writing. Exit code 1 at a problem.",
    )
    launch = commands.add(
        "launch",
        "_launch",
        "Start one program as several processes on this machine.",
        epilog="Example: meshwright launch local -n 2 -- python train.py. The exit code is that of the first "
        "process that failed by itself; processes that only lost another one end with 6.",
    )
    launch.add_argument("where", choices=("local",), metavar="local", help="on this machine")
    launch.add_argument(
        "-n", "--num-processes", type=int, required=True, metavar="N", help="how many processes to start"
    )
    launch.add_argument(
        "--devices-per-process", type=int, metavar="D", help="give each process D GPUs of its own, in order"
    )
    launch.add_argument(
        "--grace",
        type=float,
        default=12,
        metavar="SECONDS",
        help="how long processes may take to save and end, after SIGTERM or after one of them failed, before "
        "they are killed (default: 12)",
    )
    launch.add_argument(
        "command_line", nargs="+", metavar="CMD", help="after --, the program and its arguments"
    )
