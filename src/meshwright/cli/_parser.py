"""The parts of the command line that all commands share. Loading this file takes no time."""

import argparse
import importlib
from collections.abc import Callable
from textwrap import indent
from typing import Any, NoReturn

from meshwright.errors import InputError, UsageError
from meshwright.parallel._internal import described

TAKING_SETTINGS = (
    *("demo", "hlo", "plan", "train", "resume", "eval", "show", "tune"),
    *("nan", "verify-resume"),
)
"""Commands that take settings: `--key value` sets a field of the experiment, unless `--key` is in FLAGS."""

FLAGS = (
    *("--against", "--bandwidth", "--best", "--changes", "--compile-to", "--fake-devices"),
    *("--from-step", "--full"),
    *("--help", "--json", "--kill", "--merge", "--on", "--search", "--settings", "--step", "--strict"),
    *("--to", "--traced"),
    *("--verbose", "-h"),
)

MORE_FLAGS = {"verify-resume": ("--child", "--seed", "--steps")}
"""Further options, by command, which other commands take as settings."""

_RUNNING = (
    *("demo", "eval", "export", "hlo", "hosts", "local", "plan", "ray", "resume", "sample", "show"),
    *("serve", "train", "tune", "nan", "verify-resume"),
)
"""Commands that call the user's functions. An OSError of theirs is shown with its traceback."""

SETTINGS = f"""settings: key=value or --key value
  A setting changes a parameter of the function or, if it has none of that
  name, a field of the experiment that the function returns:
    max_steps=2000  input.batch_size=128  mesh=data=-1,fsdp=4  workdir=runs/other
  --settings FILE reads settings from a YAML file, with nested or dotted keys.
  Settings on the command line win over those from files.

axes of a mesh:
{indent(described(), "  ")}
"""


class Parser(argparse.ArgumentParser):
    """A parser that takes options by full name only, and raises `UsageError` instead of exiting."""

    def __init__(self, **more: Any):
        super().__init__(allow_abbrev=False, **more)

    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().strip().removeprefix("usage: ")
        raise UsageError(f"{self.prog}: {message}\n  usage: {usage}\n  Run `{self.prog} --help` for more.")


class Commands:
    """Adds commands to a parser, each with the options that all commands have."""

    def __init__(self, top: argparse.ArgumentParser, within: str = ""):
        """Begin with no commands."""
        self._shared, self._within = _shared(top), f"{within} " if within else ""
        title, metavar = ("places", "PLACE") if within else ("commands", "COMMAND")
        self._commands = top.add_subparsers(title=title, metavar=metavar, required=True)
        self.parsers: dict[str, argparse.ArgumentParser] = {}
        """The parser of each command by name; that of a subcommand by both names, such as `launch local`."""

    def add(self, name: str, module: str, summary: str, **more: Any) -> argparse.ArgumentParser:
        made = self._commands.add_parser(
            name, help=summary, description=summary, parents=[self._shared], **more
        )
        made.set_defaults(run=_later(module, name), command=f"{self._within}{name}")
        self.parsers[f"{self._within}{name}"] = made
        return made

    def group(self, name: str, summary: str, **more: Any) -> "Commands":
        """Add a command that has subcommands, and return them, to be added to."""
        made = self._commands.add_parser(name, help=summary, description=summary, **more)
        made.set_defaults(command=name)
        inner = Commands(made, name)
        inner.parsers = self.parsers
        self.parsers[name] = made
        return inner

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
            help="read settings from a YAML file; may be repeated, and the last file wins",
        )
        return made


def _shared(top: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return a parser of the options of all commands, and add them to `top` for use before the command."""
    shared = argparse.ArgumentParser(add_help=False)
    suppressed: dict[str, Any] = {"default": argparse.SUPPRESS}
    for place, default in ((top, {}), (shared, suppressed)):
        place.add_argument(
            "--json", action="store_true", help="print the result as one JSON document", **default
        )
        place.add_argument(
            "--fake-devices",
            type=int,
            metavar="N",
            help="use N virtual CPU devices in each process, instead of the machine's devices",
            **default,
        )
    return shared


def _later(module: str, name: str) -> Callable[[argparse.Namespace], Any]:
    """Return a function that loads the command's module and runs the command.

    In a command that runs none of the user's code, an OSError is about a file that the user named, and
    becomes an InputError.
    """

    def run(options: argparse.Namespace) -> Any:
        command = getattr(importlib.import_module(f"meshwright.cli.{module}"), name.replace("-", "_"))
        if name in _RUNNING:
            return command(options)
        try:
            return command(options)
        except OSError as error:
            raise InputError(f"{error.filename or name} cannot be used: {error.strerror or error}.") from None

    return run
