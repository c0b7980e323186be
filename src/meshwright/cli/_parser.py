"""The parts of the command line that all commands share. Loading this file takes no time."""

import argparse
import re
from collections.abc import Callable, Mapping
from textwrap import indent
from typing import Any, NoReturn

from meshwright.errors import InputError, UsageError
from meshwright.parallel._internal import axes_help

Result = int | tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], int]
"""A command's result: an exit code; or a text, the same as a JSON document, and the exit code if not 0."""
Run = Callable[[argparse.Namespace], Result]

SETTINGS = f"""settings: key=value or --key value
  A setting changes a parameter of the function or, if it has none of that
  name, a field of the experiment that the function returns:
    max_steps=2000  input.batch_size=128  mesh=data=-1,fsdp=4  workdir=runs/other
  --settings FILE reads settings from a YAML file, with nested or dotted keys.
  Settings on the command line win over those from files.

axes of a mesh:
{indent(axes_help(), "  ")}
"""


class Parser(argparse.ArgumentParser):
    """A parser that takes options by full name only, and raises `UsageError` instead of exiting."""

    def __init__(self, **more: Any):
        super().__init__(allow_abbrev=False, **more)

    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().strip().removeprefix("usage: ")
        raise UsageError(f"{self.prog}: {message}\n  usage: {usage}\n  Run `{self.prog} --help` for more.")


class Commands:
    """The parser of the whole command line, to which commands are added with the options that all have."""

    def __init__(self, top: argparse.ArgumentParser, summaries: Mapping[str, str], within: str = ""):
        """Begin with no commands."""
        self._summaries = summaries
        self.top, self._shared, self._within = top, _shared(top), f"{within} " if within else ""
        title, metavar = ("places", "PLACE") if within else ("commands", "COMMAND")
        self._commands = top.add_subparsers(title=title, metavar=metavar, required=True)
        self.parsers: dict[str, argparse.ArgumentParser] = {}
        """The parser of each command by name; that of a subcommand by both names, such as `launch local`."""

    def add_name(self, name: str) -> None:
        """Add a command without its options, for help and for errors that list the commands."""
        self.parsers[name] = self._commands.add_parser(name, help=self._summaries[name])

    def add(
        self, name: str, run: Run, summary: str | None = None, *, calls_user: bool = False, **more: Any
    ) -> argparse.ArgumentParser:
        """Add a command and return its parser. With `calls_user` it calls functions of the user."""
        summary = summary or self._summaries[name]
        parser = self._commands.add_parser(
            name, help=summary, description=summary, parents=[self._shared], **more
        )
        # An OSError of a user's function is shown with its traceback.
        parser.set_defaults(
            run=run if calls_user else _naming_files(name, run), command=f"{self._within}{name}"
        )
        self.parsers[f"{self._within}{name}"] = parser
        return parser

    def group(self, name: str, **more: Any) -> "Commands":
        """Add a command that has subcommands, and return them, to be added to."""
        summary = self._summaries[name]
        parser = self._commands.add_parser(name, help=summary, description=summary, **more)
        parser.set_defaults(command=name)
        inner = Commands(parser, self._summaries, name)
        inner.parsers = self.parsers
        self.parsers[name] = parser
        return inner

    def with_settings(self, name: str, run: Run) -> argparse.ArgumentParser:
        """Add a command that takes settings: `--key value`, unless `--key` is an option of the command."""
        raw = argparse.RawDescriptionHelpFormatter
        parser = self.add(name, run, calls_user=True, epilog=SETTINGS, formatter_class=raw)
        parser.add_argument(
            "--settings",
            dest="settings_files",
            metavar="FILE",
            action="append",
            default=[],
            help="read settings from a YAML file; may be repeated, and the last file wins",
        )
        return parser


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a command, also those that its help does not show."""
    return [flag for action in parser._actions for flag in action.option_strings]


def shown_options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a command that its usage shows."""
    return re.findall(r"--[a-z][a-z-]*", parser.format_usage())


def takes_settings(parser: argparse.ArgumentParser) -> bool:
    """Return whether a command takes settings."""
    return "--settings" in flags_of(parser)


def _shared(top: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return a parser of the options of all commands, and add them to `top` for use before the command."""
    shared = argparse.ArgumentParser(add_help=False)
    suppressed: dict[str, Any] = {"default": argparse.SUPPRESS}
    for parser, default in ((top, {}), (shared, suppressed)):
        parser.add_argument(
            "--json", action="store_true", help="print the result as one JSON document", **default
        )
        parser.add_argument(
            "--fake-devices",
            type=int,
            metavar="N",
            help="use N virtual CPU devices in each process, instead of the machine's devices",
            **default,
        )
    return shared


def _naming_files(name: str, run: Run) -> Run:
    """Return a command of which an OSError, which is about a file that the user named, is an InputError."""

    def naming(options: argparse.Namespace) -> Result:
        try:
            return run(options)
        except OSError as error:
            raise InputError(f"{error.filename or name} cannot be used: {error.strerror or error}.") from None

    return naming
