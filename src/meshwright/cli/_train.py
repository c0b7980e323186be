"""`meshwright train` and `meshwright resume`: from a name and settings to a finished run."""

import argparse
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.addresses import join, read_text
from meshwright.cli._overrides import build
from meshwright.cli._target import load
from meshwright.errors import EXIT_DONE, InputError, UsageError

Result = int | tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], int]
"""An exit code; or text, the same as a JSON-able document, and the exit code where it is not 0."""


def train(options: argparse.Namespace) -> Result:
    """Run the experiment that `module:function` returns."""
    return start(options.target, options.settings, options.fake_devices)


def resume(options: argparse.Namespace) -> Result:
    """Run again what `experiment.json` of a run directory says, with settings added to it.

    Raises:
      InputError: there is no such run.
    """
    file = join(options.path, "experiment.json")
    try:
        origin = json.loads(read_text(file))
        origin["target"], origin["settings"], origin["fake_devices"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} is damaged ({error!r}); start the run again with `meshwright train`."
        ) from None
    except OSError:
        raise InputError(
            f"{options.path} is no run that can be resumed: experiment.json is not there.\n"
            "  Give the run directory of a run that was started with `meshwright train` or `demo`."
        ) from None
    fake_devices = origin["fake_devices"] if options.fake_devices is None else options.fake_devices
    settings = {**origin["settings"], "run": str(options.path), **options.settings}
    return start(origin["target"], settings, fake_devices)


def start(
    target: str,
    settings: Mapping[str, str],
    fake_devices: int | None,
    *,
    next_commands: Callable[[str], Sequence[str]] = lambda run: (f"inspect {run}",),
) -> Result:
    """Build the experiment and run it on all processes.

    Args:
      target: `module:function`.
      fake_devices: virtual CPU devices of each process; None or 0 for the machine's own devices.
      next_commands: what to suggest at the end, without the program's name, of a run named as for a shell.
    """
    if fake_devices:
        use_fake_devices(fake_devices)
    from meshwright import experiment, process

    process.start()
    with process.telling():
        made = build(load(target), settings, experiment.Experiment)
    origin = {"target": target, "settings": dict(settings), "fake_devices": fake_devices}
    outcome = experiment.run(made, origin=origin)
    found = {"run": made.run, **outcome.summary()}
    return (_summary(found, next_commands(shlex.quote(made.run))), found) if process.is_lead() else EXIT_DONE


def use_fake_devices(number: int) -> None:
    """Make JAX see `number` CPU devices. Must come before JAX is used.

    Raises:
      UsageError: the number is not positive.
    """
    if number < 1:
        raise UsageError(f"--fake-devices {number}: give a number of at least 1.")
    others = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{others} --xla_force_host_platform_device_count={number}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"


def program() -> str:
    """Return how this program was called, so that a suggested command works when it is pasted."""
    beside_python = Path(sys.executable).with_name("meshwright")
    found = shutil.which("meshwright")
    if found is not None and Path(found).samefile(beside_python):
        return "meshwright"
    nearby = os.path.relpath(beside_python)
    return shlex.quote(str(beside_python) if nearby.startswith("..") else nearby)


def _summary(found: Mapping[str, Any], commands: Sequence[str]) -> str:
    from meshwright.report import PAGE

    scores = [f"{name} {value:.4g}" for name, value in found["scores"].items()]
    done = [f"done: step {found['step']} in {found['seconds']:.1f} s", *scores, f"run {found['run']}"]
    page = Path(found["run"]) / PAGE
    lines = [f"\n {'   '.join(done)}", f" page: {page}\n" if page.exists() else ""]
    return "\n".join([*lines, *(f"   {program()} {command}" for command in commands)])
