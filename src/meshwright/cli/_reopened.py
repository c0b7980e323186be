"""A run that a command started, opened again by `resume`, `eval` and others: its function and settings."""

import argparse
import functools
import shlex
import sys
from typing import Any

from meshwright.base import _internal as base
from meshwright.cli._recipe import Recipe
from meshwright.cli._target import as_module
from meshwright.cli._trust import Purpose, check_is_experiment, check_vouched
from meshwright.errors import InputError, OverrideError, UsageError, printable

SECRET = "**********"
"""The text that pydantic's `SecretStr` shows instead of its value. A run stores this text."""
STARTED_FROM: dict[str, Any] = {
    "metavar": "module:function",
    "help": "the function that the run was started from; needed only if other users can write to RUN",
}
"""How the function of a run is asked for, as the argument `target` or as the option `--by`."""


def recipe_of_run(options: argparse.Namespace, purpose: Purpose) -> Recipe:
    """Return what a run's `experiment.json` says, with more settings. No code of the run is loaded."""
    origin = _origin(options.path, purpose)
    named = options.target and as_module(options.target)
    check_vouched(options.path, origin, named, purpose)
    settings = {**origin["settings"], "workdir": str(options.path), **options.settings}
    if missing := [name for name, text in settings.items() if text == SECRET]:
        raise OverrideError(
            f"{missing[0]} is a secret, and runs do not store secrets. Give it again: {missing[0]}=VALUE."
        )
    fake_devices = origin["fake_devices"] if options.fake_devices is None else options.fake_devices
    print(f"  {purpose.doing} {printable(origin['target'], keep='')}", file=sys.stderr)
    check = None if named else functools.partial(check_is_experiment, options.path, origin, purpose)
    return Recipe(origin["target"], settings, fake_devices, options.flags, check)


def refuse_workdir(options: argparse.Namespace) -> None:
    """Refuse the setting `workdir` of a command that only reads the run."""
    if "workdir" in options.settings:
        raise UsageError(
            f"meshwright {options.command} takes the run as RUN, so there is no workdir to set: leave out "
            f"workdir={options.settings['workdir']}."
        )


def _origin(place: str, purpose: Purpose) -> dict[str, Any]:
    """Return the contents of `experiment.json`: the function, settings and devices that began the run."""
    file = base.join(place, "experiment.json")
    try:
        origin = base.parse_object(base.read_text(file))
        if not _says_how(**origin):
            raise ValueError("its values have wrong types")
    except OSError:
        raise InputError(
            f"{place} cannot be {purpose.done}: there is no {file}.\n  {_instead(place, purpose)}"
        ) from None
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{file}, which says how the run was started, is damaged ({error}). "
            f"{purpose.without_file.format(place=shlex.quote(place))}"
        ) from None
    return origin


def _instead(place: str, purpose: Purpose) -> str:
    """Return advice for a run that no command can open again, as another program started it."""
    try:
        command = base.parse_object(base.read_text(base.join(place, "environment.json"))).get("command")
    except (OSError, ValueError):
        command = None
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        python = ["python"] if command[0].endswith(".py") else []
        text = printable(shlex.join([*python, *command]), keep="")
        return purpose.in_program.format(command=text, place=place)
    if ":" in place or place.endswith(".py"):
        return f"To train the experiment that a function returns: `meshwright train {shlex.quote(place)}`"
    return "Expected the directory of a run that `meshwright train` or `meshwright demo` started."


def _says_how(target: Any, settings: Any, fake_devices: Any, **_: Any) -> bool:
    """Return whether these values have the types that a run writes."""
    texts = [target, *settings, *settings.values()] if isinstance(settings, dict) else [None]
    return all(isinstance(each, str) for each in texts) and (
        fake_devices is None or type(fake_devices) is int
    )
