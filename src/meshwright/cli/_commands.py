"""The commands and their options, with the texts that `--help` shows."""

import argparse
from dataclasses import dataclass
from typing import Any

from meshwright._version import __version__
from meshwright.cli._checkpoint_commands import add_checkpoints, add_which
from meshwright.cli._export_command import add_export
from meshwright.cli._launch_commands import add_launch
from meshwright.cli._parser import Commands, Parser
from meshwright.cli._replay_commands import add_replay
from meshwright.cli._sample_command import add_sample
from meshwright.cli._serve_command import add_serve

_TARGET: dict[str, Any] = {
    "metavar": "module:function",
    "help": "the function that returns the experiment: gpt:experiment, or gpt.py:experiment",
}


@dataclass(frozen=True)
class Grammar:
    """The parser of the whole command line, and the parser of each command by name."""

    top: argparse.ArgumentParser
    commands: dict[str, argparse.ArgumentParser]


def grammar() -> Grammar:
    """Return the grammar. Each command sets `run`: a function from the options to a result."""
    top = Parser(
        prog="meshwright",
        description="Train, checkpoint, evaluate and inspect any JAX model, on one device or thousands.",
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage (nothing was started), 3 input missing or "
        "damaged, 4 diverged, 5 hung, 6 another process of the run is gone (start the command again), "
        "75 stopped with the state saved (start the command again), 130 Ctrl-C",
    )
    top.add_argument("--version", action="version", version=f"meshwright {__version__}")
    commands = Commands(top)
    _add_first(commands)
    _add_runs(commands)
    add_sample(commands)
    add_export(commands)
    add_serve(commands)
    _add_plan(commands)
    _add_looks_at_runs(commands)
    add_replay(commands)
    add_checkpoints(commands)
    _add_machines(commands)
    return Grammar(top, commands.parsers)


def _add_first(commands: Commands) -> None:
    init = commands.add("init", "_init", "Write a first program, ready to run on a file of your own.")
    init.add_argument(
        "kind",
        nargs="?",
        type=_kind,
        choices=("nnx", "linen", "equinox", "plain"),
        default="plain",
        help="library of the model: Flax NNX, Flax Linen, Equinox or none (default: plain)",
    )
    init.add_argument(
        "file", nargs="?", metavar="FILE", default="train.py", help="the file to write (default: train.py)"
    )
    completion = commands.add(
        "completion",
        "_completion",
        "Print a script by which a shell completes commands, options and runs.",
        epilog='Put into ~/.bashrc: eval "$(meshwright completion bash)"; into ~/.zshrc: eval "$(meshwright '
        'completion zsh)"; for fish: meshwright completion fish > ~/.config/fish/completions/meshwright.fish',
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete in")


def _kind(word: str) -> str:
    if word.endswith(".py"):
        raise argparse.ArgumentTypeError(f"the kind comes first: meshwright init plain {word}")
    return word


def _add_runs(commands: Commands) -> None:
    demo = commands.with_settings("demo", "_demo", "Train a small real model on virtual devices, offline.")
    demo.add_argument("name", nargs="?", choices=("digits", "text"), default="digits", help="default: digits")
    demo.add_argument(
        "--kill",
        action="store_true",
        help="kill the training half way, then continue it in a second process",
    )
    train = commands.with_settings("train", "_train", "Train an experiment, or continue its run.")
    train.add_argument("target", **_TARGET)
    resume = commands.with_settings(
        "resume", "_train", "Continue a run with the function and settings it was started with."
    )
    resume.add_argument("path", metavar="RUN", help="the directory or URL of the run")
    resume.add_argument(
        "target",
        metavar="module:function",
        nargs="?",
        help="the function that the run was started from; needed only if other users can write to RUN",
    )
    resume.add_argument(
        "--from-step",
        type=int,
        metavar="N",
        help="go back to the checkpoint of step N; later checkpoints and reports are set aside",
    )
    tune = _add_tune(commands)
    _add_eval(commands)
    for made in (train, resume, tune):
        made.add_argument(
            "--strict",
            action="store_true",
            help="refuse to continue a run with changed settings (default: print the changes and continue)",
        )
    for made in (demo, train, resume, tune):
        made.add_argument(
            "--verbose", action="store_true", help="show every array and every check before the first step"
        )
    _add_show(commands)


def _add_tune(commands: Commands) -> argparse.ArgumentParser:
    tune = commands.with_settings(
        "tune",
        "_tune",
        "Tune a model of Hugging Face's on a file of chats or texts, and write an adapter or a model. "
        "More settings: lora=16 (the rank), base=int8 or nf4, epochs, batch_size, length, learning_rate, "
        "held_out, mesh.",
    )
    tune.add_argument("model", metavar="FOLDER", help="the folder of the model, as `hf download` fetches it")
    tune.add_argument(
        "data",
        metavar="FILE",
        help='a file of JSON lines: {"messages": […]}, {"prompt": …, "completion": …}, {"text": …}, or '
        '{"tokens": [1, 15, 7], "weights": [0, 1, 1]}',
    )
    tune.add_argument("--full", action="store_true", help="train all parameters (default: an adapter)")
    tune.add_argument(
        "--merge", action="store_true", help="write the model with the adapter added, not the adapter alone"
    )
    return tune


def _add_eval(commands: Commands) -> None:
    evaluate = commands.with_settings(
        "eval",
        "_eval",
        "Print the scores of a run's checkpoint: the newest, of a step, or the best. Nothing is written.",
    )
    evaluate.add_argument("path", metavar="RUN", help="the directory or URL of the run, also while it trains")
    evaluate.add_argument(
        "target",
        metavar="module:function",
        nargs="?",
        help="the function that the run was started from; needed only if other users can write to RUN",
    )
    add_which(evaluate, "evaluate")


def _add_show(commands: Commands) -> None:
    show = commands.with_settings("show", "_show", "Print all settings of an experiment, without running it.")
    show.add_argument("target", **_TARGET)
    show.add_argument(
        "--against",
        metavar="OTHER",
        help="print only the settings that differ from those of OTHER: a module:function, a run directory or "
        "its experiment.txt; exit code 1 if any do",
    )


def _add_plan(commands: Commands) -> None:
    plan = commands.with_settings(
        "plan",
        "_plan",
        "Estimate a step's memory, communication and time on hardware you do not have.",
    )
    plan.add_argument("target", **_TARGET)
    plan.add_argument(
        "--on",
        required=True,
        metavar="HARDWARE",
        help="chip and number: h100:64x8 (64 hosts with 8 GPUs each), v5e:16x16 (a TPU slice of that "
        "topology) or cpu:8",
    )
    plan.add_argument(
        "--search",
        action="store_true",
        help="try meshes, remat of layers, microbatches and offloading; compile the best, and rank them",
    )
    plan.add_argument(
        "--traced",
        action="store_true",
        help="do not compile the step, only trace it: faster, but less exact",
    )
    plan.add_argument(
        "--bandwidth",
        type=float,
        default=1.0,
        metavar="GB/s",
        help="speed at which one host writes a checkpoint (default: 1 GB/s)",
    )
    plan.add_argument("--compile-to", metavar="FILE", help=argparse.SUPPRESS)  # see cli/_plan.py
    plan.add_argument("--changes", default="{}", metavar="JSON", help=argparse.SUPPRESS)  # likewise


def _add_looks_at_runs(commands: Commands) -> None:
    inspect = commands.add("inspect", "_inspect", "Show the contents of a run or a checkpoint.")
    inspect.add_argument("path", metavar="PATH", help="a run, or a checkpoint of any format")
    add_which(inspect, "show")
    report = commands.add(
        "report",
        "_report",
        "Write an HTML page about a run, or a page that compares several, and print a summary.",
    )
    report.add_argument("runs", nargs="+", metavar="RUN", help="the directory or URL of a run")
    report.add_argument(
        "--to",
        metavar="FILE",
        help="file to write the page to (default: report.html in the run; for several runs, comparison.html "
        "in the current directory)",
    )
    _add_list(commands)
    trace = commands.add("trace", "_trace", "Show how the time of profiled steps was spent.")
    trace.add_argument("path", metavar="RUN", help="a run, a directory of profiles, or an .xplane.pb file")
    trace.add_argument(
        "--step", type=int, metavar="N", help="show the profile that begins at step N (default: the newest)"
    )
    trace.add_argument(
        "--depth",
        type=int,
        default=2,
        metavar="N",
        help="tell apart N scopes of the model, one inside the other (default: 2)",
    )
    hlo = commands.with_settings(
        "hlo", "_hlo", "Compile an experiment's step and write the optimised program (HLO)."
    )
    hlo.add_argument("target", **_TARGET)
    hlo.add_argument(
        "--to",
        metavar="DIR",
        required=True,
        help="directory or URL to write to: the HLO as text, its graph as DOT and SVG",
    )


def _add_list(commands: Commands) -> None:
    runs = commands.add("runs", "_runs", "List the runs under a directory or URL: state, step, loss, score.")
    runs.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        default="runs",
        help="the directory or URL to search (default: runs)",
    )
    runs.add_argument(
        "--sort",
        metavar="SCORE",
        help="list the best run by this score first: test/loss, or test/loss:min to say that lower is better "
        "(default: the most recent report first)",
    )
    runs.add_argument(
        "--columns",
        metavar="NAME,NAME",
        default="",
        help="show these settings and scores, a column each, in place of the times",
    )


def _add_machines(commands: Commands) -> None:
    doctor = commands.add(
        "doctor",
        "_doctor",
        "Check this machine, or all of a launch together: versions, devices, processes, compiling, writing.",
        epilog="Exit code 1 if a check fails. On several machines: srun meshwright doctor",
    )
    doctor.add_argument(
        "place",
        nargs="?",
        metavar="RUN",
        help="the directory or URL of a run that goes on: show where each of its processes stands instead; "
        "exit code 5 if one of them stands still for longer than is usual",
    )
    doctor.add_argument(
        "--attention",
        action="store_true",
        help="also compute attention in random cases, and compare values and gradients with the definition",
    )
    add_launch(commands)
