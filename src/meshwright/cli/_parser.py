"""The grammar of the command line, and nothing that takes time to load."""

import argparse
import importlib
from collections.abc import Callable
from typing import Any

from meshwright._version import __version__
from meshwright.errors import InputError

TAKING_SETTINGS = ("demo", "hlo", "plan", "train", "resume", "show")
"""The commands after which `--key value` sets something of an experiment, unless it is one of FLAGS."""

FLAGS = (
    *("--against", "--bandwidth", "--compile-to", "--fake-devices", "--help", "--json", "--kill", "--on"),
    *("--from-step", "--search", "--settings", "--strict", "--to", "--traced", "-h"),
)

_RUNNING = ("demo", "hlo", "launch", "plan", "resume", "show", "train")
"""The commands that call users' functions, whose errors are shown whole."""

SETTINGS = """settings, key=value or --key value:
  the function's own parameters first, then fields of the experiment it returns:
  max_steps=2000   input.batch_size=128   save.when=100   mesh=data=-1,fsdp=4   workdir=runs/other
  --settings FILE says the same in YAML, nested or with dotted keys; what stands here wins over it
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser. Each command sets `run`: a function from the options to a result."""
    top = argparse.ArgumentParser(
        prog="meshwright",
        description="Train, checkpoint, evaluate and inspect any JAX model, on one device or thousands.",
        epilog="exit codes: 0 done, 1 failed, 2 usage (nothing was started), 3 input missing or damaged, "
        "4 diverged, 5 hung, 6 another process of the run is gone (run it again), "
        "75 stopped with the state saved (run it again), 130 Ctrl-C",
    )
    top.add_argument("--version", action="version", version=f"meshwright {__version__}")
    commands = _Commands(top)
    _add_runs(commands)
    _add_plan(commands)
    _add_looks_at_runs(commands)
    _add_checkpoints(commands)
    _add_machines(commands)
    return top


class _Commands:
    """Adds commands to a parser, each with the options that all have."""

    def __init__(self, top: argparse.ArgumentParser):
        self._shared = _shared(top)
        self._commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(self, name: str, module: str, summary: str, **more: Any) -> argparse.ArgumentParser:
        made = self._commands.add_parser(
            name, help=summary, description=summary, parents=[self._shared], **more
        )
        made.set_defaults(run=_later(module, name))
        return made

    def with_settings(self, name: str, module: str, summary: str) -> argparse.ArgumentParser:
        made = self.add(
            name, module, summary, epilog=SETTINGS, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        made.add_argument(
            "--settings",
            dest="settings_files",
            metavar="FILE",
            action="append",
            default=[],
            help="settings in YAML; may be given several times, the later ones win",
        )
        return made


def _add_runs(commands: _Commands) -> None:
    demo = commands.with_settings("demo", "_demo", "Train a small real model on virtual devices, offline.")
    demo.add_argument("name", nargs="?", choices=("digits", "text"), default="digits")
    demo.add_argument("--kill", action="store_true", help="kill it half way, to see it continue")
    train = commands.with_settings(
        "train", "_train", "Run the experiment that a function returns, or continue it."
    )
    train.add_argument("target", metavar="module:function")
    resume = commands.with_settings("resume", "_train", "Continue a run as it was started.")
    resume.add_argument("path", metavar="RUN", help="its run directory")
    resume.add_argument(
        "target",
        metavar="module:function",
        nargs="?",
        help="what it was started from; to be named where others may have written that into the run",
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
            help="refuse to continue a run with other settings than it was trained with so far",
        )
    show = commands.with_settings(
        "show", "_show", "Describe the experiment that a function returns, running nothing."
    )
    show.add_argument("target", metavar="module:function")
    show.add_argument(
        "--against",
        metavar="OTHER",
        help="show in what it differs from another: module:function, a run, or its experiment.txt; exit code "
        "0 if in nothing, else 1",
    )


def _add_plan(commands: _Commands) -> None:
    plan = commands.with_settings(
        "plan", "_plan", "Tell what a step takes of hardware that is not there: memory, network, time."
    )
    plan.add_argument("target", metavar="module:function")
    plan.add_argument(
        "--on",
        required=True,
        metavar="HARDWARE",
        help="h100:64x8, hosts and GPUs of each; v5e:16x16, the topology of a TPU slice; cpu:8",
    )
    plan.add_argument("--search", action="store_true", help="try all meshes that divide, and rank them")
    plan.add_argument(
        "--traced",
        action="store_true",
        help="estimate from the traced step; do not compile it even where the hardware's compiler is there",
    )
    plan.add_argument(
        "--bandwidth",
        type=float,
        default=1.0,
        metavar="GB/s",
        help="what a host writes of a checkpoint in a second",
    )
    plan.add_argument("--compile-to", metavar="FILE", help=argparse.SUPPRESS)  # see cli/_plan.py


def _add_looks_at_runs(commands: _Commands) -> None:
    inspect = commands.add("inspect", "_inspect", "Show what a run or a checkpoint holds.")
    inspect.add_argument("path", metavar="PATH", help="a run, or a checkpoint of any format")
    _add_step(inspect, "show the checkpoint of this step")
    report = commands.add(
        "report", "_report", "Write a page of a run, or of several side by side, and tell it in short."
    )
    report.add_argument("runs", nargs="+", metavar="RUN", help="the directory of a run")
    report.add_argument(
        "--to", metavar="FILE", help="where to; else report.html in the run, or comparison.html here"
    )
    runs = commands.add("runs", "_runs", "List the runs below a directory or an address, and how they fare.")
    runs.add_argument("directory", nargs="?", metavar="DIR", default="runs", help="runs, unless given")
    trace = commands.add(
        "trace", "_trace", "Show where the time of a profile went: devices, operations, input."
    )
    trace.add_argument("path", metavar="RUN", help="a run, a directory of profiles, or an .xplane.pb file")
    trace.add_argument(
        "--step", type=int, metavar="N", help="the profile from that step on; else the newest one"
    )
    hlo = commands.with_settings("hlo", "_hlo", "Write what the compiler makes of an experiment's step.")
    hlo.add_argument("target", metavar="module:function")
    hlo.add_argument("--to", metavar="PLACE", required=True, help="for HLO text, its graph in DOT, and SVG")


def _add_checkpoints(commands: _Commands) -> None:
    verify = commands.add(
        "verify",
        "_verify",
        "Compare every byte of checkpoints with what was written; read all of other formats.",
    )
    verify.add_argument("path", metavar="PATH", help="a run or a directory, for all in it, or a checkpoint")
    diff = commands.add(
        "diff", "_diff", "Show in what two checkpoints differ: exit code 0 if in nothing, else 1."
    )
    diff.add_argument("a", metavar="A", help="a run, or a checkpoint of any format")
    diff.add_argument("b", metavar="B", help="another")
    _add_step(diff, "compare what both have of this step")
    _add_convert(commands)
    pin = commands.add("pin", "_pin", "Keep the checkpoint of a step, whatever the retention policy says.")
    unpin = commands.add("unpin", "_pin", "Leave the checkpoint of a step to the retention policy again.")
    for each in (pin, unpin):
        each.add_argument("directory", metavar="DIRECTORY", help="a run, or its checkpoints")
        each.add_argument("step", metavar="STEP", type=int)
    pin.add_argument("--note", metavar="TEXT", default="", help="why, for people")


def _add_step(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--step", type=int, metavar="N", help=f"of a directory, {what}; else the newest")


def _add_convert(commands: _Commands) -> None:
    convert = commands.add(
        "convert",
        "_convert",
        "Write a checkpoint anew: in another format or dtype, under other names, or a part of it.",
    )
    convert.add_argument("source", metavar="SRC", help="of any format, which is seen from its content")
    convert.add_argument("destination", metavar="DST", help="a directory, made if need be; of npz, a file")
    _add_step(convert, "take the checkpoint of this step")
    convert.add_argument(
        "--to",
        choices=("native", "safetensors", "npz", "seqax", "t5x"),
        help="native, unless --map implies another",
    )
    convert.add_argument(
        "--map",
        metavar="MAP",
        help="hugging-face, or module:map, a mw.models.Map of your own: names there become ours, params/…; "
        "to-hugging-face, to-module:map: back, into safetensors",
    )
    convert.add_argument(
        "--config",
        metavar="PLACE",
        help="config.json of the Hugging Face model, or a directory with it; if not said, the one beside SRC",
    )
    convert.add_argument("--subtree", metavar="NAME", help="what is below it, named from there on: params")
    convert.add_argument("--dtype", metavar="D", help="of the parameters: bfloat16, say")
    convert.add_argument(
        "--only", metavar="REGEX", help="the arrays whose names, with us, or ends of names it matches"
    )


def _add_machines(commands: _Commands) -> None:
    commands.add(
        "doctor", "_doctor", "Show versions, devices, processes and what else decides whether a run works."
    )
    launch = commands.add(
        "launch",
        "_launch",
        "Start one program as several processes on this machine.",
        epilog="Its exit code is that of the first process that failed for a cause of its own. Those that "
        "only lost it end with 6.",
    )
    launch.add_argument("where", choices=("local",))
    launch.add_argument("-n", "--num-processes", type=int, required=True, metavar="N")
    launch.add_argument(
        "--devices-per-process", type=int, metavar="D", help="give each process D GPUs of its own, in order"
    )
    launch.add_argument(
        "--grace",
        type=float,
        default=12,
        metavar="SECONDS",
        help="how long processes may take to end, and to save before, after SIGTERM or when one has failed; "
        "then they are killed (default: 12)",
    )
    launch.add_argument("command", nargs="+", metavar="-- CMD")


def _shared(top: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Let options that every command has stand before the command as well as after it."""
    shared = argparse.ArgumentParser(add_help=False)
    suppressed: dict[str, Any] = {"default": argparse.SUPPRESS}
    for place, default in ((top, {}), (shared, suppressed)):
        place.add_argument("--json", action="store_true", help="print one JSON document on stdout", **default)
        place.add_argument(
            "--fake-devices",
            type=int,
            metavar="N",
            help="use N virtual CPU devices for each process",
            **default,
        )
    return shared


def _later(module: str, name: str) -> Callable[[argparse.Namespace], Any]:
    """Return the command's function, whose module is loaded when it is called.

    Where it runs nothing of the user's, what the system says of a file is told, and is no mistake of ours.
    """

    def run(options: argparse.Namespace) -> Any:
        command = getattr(importlib.import_module(f"meshwright.cli.{module}"), name)
        if name in _RUNNING:
            return command(options)
        try:
            return command(options)
        except OSError as error:
            raise InputError(f"{error.filename or name} cannot be used: {error.strerror or error}.") from None

    return run
