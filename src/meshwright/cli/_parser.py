"""What all commands share on the command line. Nothing here takes time to load."""

import argparse
import importlib
from collections.abc import Callable
from typing import Any, NoReturn

from meshwright.errors import InputError, UsageError

TAKING_SETTINGS = ("demo", "hlo", "plan", "train", "resume", "show")
"""The commands after which `--key value` sets something of an experiment, unless it is one of FLAGS."""

FLAGS = (
    *("--against", "--bandwidth", "--compile-to", "--fake-devices", "--help", "--json", "--kill", "--on"),
    *("--from-step", "--search", "--settings", "--strict", "--to", "--traced", "--verbose", "-h"),
)

_RUNNING = ("demo", "hlo", "launch", "plan", "resume", "show", "train")
"""The commands that call users' functions, whose errors are shown whole."""

SETTINGS = """settings, key=value or --key value:
  They set the parameters of the function, or else fields of the experiment
  that it returns:
    max_steps=2000  input.batch_size=128  mesh=data=-1,fsdp=4  workdir=runs/other
  --settings FILE reads them from YAML, nested or with dotted keys. Settings on
  the command line win over those of files.
"""


class Parser(argparse.ArgumentParser):
    """Takes options by their whole names, and raises what it cannot parse."""

    def __init__(self, **more: Any):
        super().__init__(allow_abbrev=False, **more)

    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().strip().removeprefix("usage: ")
        raise UsageError(f"{self.prog}: {message}\n  usage: {usage}\n  `{self.prog} --help` says more.")


class Commands:
    """Adds commands to a parser, each with the options that all have."""

    def __init__(self, top: argparse.ArgumentParser):
        self._shared = _shared(top)
        self._commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
        self.parsers: dict[str, argparse.ArgumentParser] = {}

    def add(self, name: str, module: str, summary: str, **more: Any) -> argparse.ArgumentParser:
        made = self._commands.add_parser(
            name, help=summary, description=summary, parents=[self._shared], **more
        )
        made.set_defaults(run=_later(module, name), command=name)
        self.parsers[name] = made
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
            help="read settings from a YAML file; if given several times, later files win",
        )
        return made


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
