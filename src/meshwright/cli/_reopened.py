"""A run that a command started, opened again by `resume` or `eval`: its function, its settings, and trust."""

import argparse
import functools
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.base._internal import join, parse_object, read_text
from meshwright.cli._target import as_module
from meshwright.cli._trust import Purpose, check_is_experiment, check_vouched
from meshwright.errors import InputError, OverrideError, printable

SECRET = "**********"
"""The text that pydantic's `SecretStr` shows instead of its value. A run stores this text."""


@dataclass(frozen=True)
class Reopened:
    """The function and the settings of a run."""

    target: str
    """The function, as `module:function`."""
    settings: Mapping[str, str]
    """The texts of the settings, by dotted path."""
    fake_devices: int | None
    """The number of virtual CPU devices in each process; None or 0 for the machine's own devices."""
    check: Callable[[Callable[..., Any]], None] | None
    """Raises if the function must not be called."""


def reopened(options: argparse.Namespace, purpose: Purpose) -> Reopened:
    """Return the function and the settings in a run's `experiment.json`. No code of the run is loaded."""
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
    return Reopened(origin["target"], settings, fake_devices, check)


def _origin(place: str, purpose: Purpose) -> dict[str, Any]:
    """Return the contents of `experiment.json`: the function, settings and devices that began the run."""
    file = join(place, "experiment.json")
    try:
        origin = parse_object(read_text(file))
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
        command = parse_object(read_text(join(place, "environment.json"))).get("command")
    except (OSError, ValueError):
        command = None
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        python = ["python"] if command[0].endswith(".py") else []
        said = printable(shlex.join([*python, *command]), keep="")
        return purpose.in_program.format(command=said, place=place)
    if ":" in place or place.endswith(".py"):
        return f"To train the experiment that a function returns: `meshwright train {shlex.quote(place)}`"
    return "Expected the directory of a run that `meshwright train` or `meshwright demo` started."


def _says_how(target: Any, settings: Any, fake_devices: Any, **_: Any) -> bool:
    """Return whether these values have the types that a run writes."""
    texts = [target, *settings, *settings.values()] if isinstance(settings, dict) else [None]
    return all(isinstance(each, str) for each in texts) and (
        fake_devices is None or type(fake_devices) is int
    )
