"""`meshwright train` and `meshwright resume`: run an experiment given by its function and settings."""

import argparse
import functools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright import old_names
from meshwright.cli._overrides import build, with_secrets
from meshwright.cli._target import as_module, load
from meshwright.cli._vouched import check_is_experiment, check_vouched
from meshwright.documents import parse_object
from meshwright.errors import EXIT_DONE, InputError, OverrideError, UsageError, printable
from meshwright.storage import join, read_text
from meshwright.tables import screen_width, wrapped

Result = int | tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], int]
"""A command's result: an exit code; or a text, the same as a JSON document, and the exit code if not 0."""

SECRET = "**********"
"""The text that pydantic's `SecretStr` shows instead of its value. A run stores this text."""


def train(options: argparse.Namespace) -> Result:
    """Run the experiment that `module:function` returns."""
    how = {"strict": options.strict, "verbose": options.verbose, "started": options.started}
    return start(as_module(options.target), options.settings, options.fake_devices, **how)


def resume(options: argparse.Namespace) -> Result:
    """Run the function and settings that a run's `experiment.json` names, with more settings added.

    Raises:
      InputError: there is no such run.
      UsageError: somebody other than the user may have chosen the function, or a secret is missing.
    """
    origin = _origin(options.path)
    named = options.target and as_module(options.target)
    check_vouched(options.path, origin, named)
    given = {old_names.setting(name): value for name, value in origin["settings"].items()}
    settings = {**given, "workdir": str(options.path), **options.settings}
    if missing := [name for name, text in settings.items() if text == SECRET]:
        raise OverrideError(
            f"{missing[0]} is a secret, and runs do not store secrets. Give it again: {missing[0]}=VALUE."
        )
    fake_devices = origin["fake_devices"] if options.fake_devices is None else options.fake_devices
    print(f"  resuming {printable(origin['target'], keep='')}", file=sys.stderr)
    check = None if named else functools.partial(check_is_experiment, options.path, origin)
    how = {"strict": options.strict, "verbose": options.verbose, "started": options.started}
    return start(origin["target"], settings, fake_devices, check=check, from_step=options.from_step, **how)


def _origin(place: str) -> dict[str, Any]:
    """Return the contents of `experiment.json`: the function, settings and devices that began the run.

    Raises:
      InputError: the file does not exist, or is damaged.
    """
    file = join(place, "experiment.json")
    try:
        origin = parse_object(read_text(file))
        if not _says_how(**origin):
            raise ValueError("its values have wrong types")
    except OSError:
        raise InputError(f"{place} cannot be resumed: there is no {file}.\n  {_instead(place)}") from None
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{file}, which says how the run was started, is damaged ({error}). To continue without it:\n"
            f"    meshwright train module:function workdir={shlex.quote(place)}"
        ) from None
    return origin


def _instead(place: str) -> str:
    """Return advice for a run that `resume` cannot continue, as another program started it."""
    try:
        command = parse_object(read_text(join(place, "environment.json"))).get("command")
    except (OSError, ValueError):
        command = None
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        python = ["python"] if command[0].endswith(".py") else []
        said = printable(shlex.join([*python, *command]), keep="")
        return f"Another program started this run. To continue, start that program again: `{said}`"
    if ":" in place or place.endswith(".py"):
        return f"To train the experiment that a function returns: `meshwright train {shlex.quote(place)}`"
    return "Expected the directory of a run that `meshwright train` or `meshwright demo` started."


def _says_how(target: Any, settings: Any, fake_devices: Any, **_: Any) -> bool:
    """Return whether these values have the types that `start` writes."""
    texts = [target, *settings, *settings.values()] if isinstance(settings, dict) else [None]
    return all(isinstance(each, str) for each in texts) and (
        fake_devices is None or type(fake_devices) is int
    )


def start(
    target: str,
    settings: Mapping[str, str],
    fake_devices: int | None,
    *,
    next_commands: Callable[[str], Sequence[str]] = lambda run: (f"inspect {run}",),
    check: Callable[[Callable[..., Any]], None] | None = None,
    strict: bool = False,
    from_step: int | None = None,
    started: float | None = None,
    verbose: bool = False,
) -> Result:
    """Build the experiment and run it on all processes.

    Args:
      target: the function that makes the experiment, as `module:function`.
      settings: the texts of the settings, by dotted path.
      fake_devices: number of virtual CPU devices in each process; None or 0 for the machine's own devices.
      next_commands: returns the commands to suggest at the end, given the run's path quoted for a shell.
      check: raises if the function must not be called.
      strict: refuse to continue a run with other settings than before.
      from_step: go back to the checkpoint of this step.
      started: time at which the command was launched, on the clock `time.monotonic`.
      verbose: show every array and every check before the first step.
    """
    if fake_devices:
        use_fake_devices(fake_devices)
    from meshwright import experiment, process

    process.start()
    with process.sharing_errors():
        function = load(target)
        if check is not None:
            check(function)
        made = build(function, settings, experiment.Experiment)
    told = with_secrets(function, settings)
    origin = {"target": target, "settings": told, "fake_devices": fake_devices}
    how = {"strict": strict, "from_step": from_step, "started": started, "verbose": verbose}
    outcome = experiment.run(made, origin=origin, **how)
    found = {"workdir": made.workdir, **outcome.summary()}
    return (
        (_summary(found, next_commands(shlex.quote(made.workdir))), found) if process.is_lead() else EXIT_DONE
    )


def use_fake_devices(number: int) -> None:
    """Make JAX see `number` CPU devices. Call this before JAX is first used.

    Raises:
      UsageError: the number is not positive.
    """
    if number < 1:
        raise UsageError(f"--fake-devices {number}: expected a number of at least 1.")
    others = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{others} --xla_force_host_platform_device_count={number}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"


def program() -> str:
    """Return the shell word that starts this program, so that suggested commands can be pasted."""
    beside_python = Path(sys.executable).with_name("meshwright")
    found = shutil.which("meshwright")
    if found is not None and Path(found).samefile(beside_python):
        return "meshwright"
    nearby = os.path.relpath(beside_python)
    return shlex.quote(str(beside_python) if nearby.startswith("..") else nearby)


def _summary(found: Mapping[str, Any], commands: Sequence[str]) -> str:
    from meshwright.report import PAGE

    scores = [f"{name} {value:.4g}" for name, value in found["scores"].items()]
    done = [f"done: step {found['step']} in {found['seconds']:.1f} s", *scores, f"run {found['workdir']}"]
    page = Path(found["workdir"]) / PAGE
    told = wrapped(f" {'   '.join(done)}", width=screen_width(), indent="   ")
    lines = [f"\n{told}", f" page: {page}\n" if page.exists() else ""]
    return "\n".join([*lines, *(f"   {program()} {command}" for command in commands)])
