"""The command line: `meshwright COMMAND`. Each command calls one public function.

Nothing here imports JAX until a command needs it, so that help and usage errors come at once.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from meshwright.base import _internal as base
from meshwright.cli._commands import grammar
from meshwright.cli._guess import check_rest, command_in
from meshwright.cli._parser import flags_of, takes_settings
from meshwright.cli._process import STOPPED, end_at_once, open_streams, show
from meshwright.cli._settings import read_settings, split
from meshwright.errors import EXIT_CTRL_C, EXIT_DONE, EXIT_USAGE, OF_THE_MACHINE, Interrupted, MeshwrightError
from meshwright.processes._internal import process_start_time

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code. `meshwright.errors` lists the codes and their meaning.

    Progress goes to stderr. The result goes to stdout, as text or, with `--json`, as one JSON document.

    Args:
      arguments: The words after the program's name; None for those that the process was started with.

    Example:
      >>> from meshwright.cli import main
      >>> main(["runs"])  # which prints the error on stderr
      3
    """
    if arguments is None:
        open_streams()
    started = process_start_time() if arguments is None else time.monotonic()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        grammar("").top.print_help(sys.stderr)
        return EXIT_USAGE
    as_json = "--json" in _before_dashes(words)
    if arguments is None and words[0] in ("train", "resume", "demo", "eval"):
        end_at_once()
    try:
        return _answer(_options(words, started), as_json=as_json)
    except MeshwrightError as error:
        return _refuse(error, as_json=as_json)
    except OSError as error:
        if error.errno not in OF_THE_MACHINE:
            raise
        message = f"{error.filename or 'a file'}: {error.strerror}. {base.advice(error)}".strip()
        return _refuse(MeshwrightError(message), as_json=as_json)
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        _leave(EXIT_CTRL_C)
        return EXIT_CTRL_C


def _options(words: list[str], started: float) -> argparse.Namespace:
    settings: dict[str, str] = {}
    command = command_in(_before_dashes(words))
    commands = grammar(command or "")  # the files of other commands are not loaded
    parser = commands.top if command is None else commands.parsers[command]
    flags = flags_of(parser)
    if takes_settings(parser):
        words, settings = split(words, flags)
    options = argparse.Namespace(started=started, words=words, flags=flags, commands=commands)
    options, rest = commands.top.parse_known_args(words, options)
    check_rest(rest, options.command, commands)
    from_files = [read_settings(path) for path in getattr(options, "settings_files", ())]
    options.settings = {name: text for each in (*from_files, settings) for name, text in each.items()}
    return options


def _before_dashes(words: list[str]) -> list[str]:
    """Return the words for Meshwright: after a bare `--` comes another program's command line."""
    return words[: words.index("--")] if "--" in words else words


def _answer(options: argparse.Namespace, *, as_json: bool) -> int:
    """Run the command and return its exit code.

    A command returns its exit code, having printed everything itself, or `(text, document[, exit code])`.
    """
    result: int | tuple[Any, ...] = options.run(options)
    if isinstance(result, int):
        return result
    text, document, exit_code = (*result, EXIT_DONE)[:3]
    # Checkpoints of other systems may hold values that JSON does not have, such as bytes.
    show(json.dumps(document, indent=2, default=repr) if as_json else text)
    return exit_code


def _refuse(error: MeshwrightError, *, as_json: bool) -> int:
    stopped = isinstance(error, Interrupted)
    print(error if stopped else f"error: {error}", file=sys.stderr)
    if as_json:
        kind = "stopped" if stopped else "error"
        print(json.dumps({kind: str(error), "exit_code": error.exit_code}, indent=2))
    if not stopped:  # all processes stop together, but an error may be of this one alone
        _leave(error.exit_code)
    return error.exit_code


def _leave(exit_code: int) -> None:
    """Leave without waiting for the run's other processes, which may not know that this one has failed."""
    if "jax" in sys.modules:
        from meshwright.processes import _internal as processes

        processes.exit_now(exit_code)
