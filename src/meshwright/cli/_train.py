"""`meshwright train` and `meshwright resume`: run an experiment given by its function and settings."""

import argparse
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.base._internal import screen_width, wrapped
from meshwright.cli._overrides import build, defaults_of, with_secrets
from meshwright.cli._reopened import reopened
from meshwright.cli._signals import ignore_signals
from meshwright.cli._target import as_module, load
from meshwright.cli._trust import Purpose
from meshwright.errors import EXIT_DONE, UsageError

Result = int | tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], int]
"""A command's result: an exit code; or a text, the same as a JSON document, and the exit code if not 0."""

RESUME = Purpose(
    command="resume",
    done="resumed",
    doing="resuming",
    in_program="Another program started this run. To continue, start that program again: `{command}`",
    without_file="To continue without it:\n    meshwright train module:function workdir={place}",
    by_another="To start another run: `meshwright train {named} workdir=PATH`",
)


def train(options: argparse.Namespace) -> Result:
    """Run the experiment that `module:function` returns."""
    how = {"strict": options.strict, "verbose": options.verbose, "started": options.started}
    return start(as_module(options.target), options.settings, options.fake_devices, **how)


def resume(options: argparse.Namespace) -> Result:
    """Run the function and settings that a run's `experiment.json` names, with more settings added."""
    opened = reopened(options, RESUME)
    how = {"strict": options.strict, "verbose": options.verbose, "started": options.started}
    given = {"check": opened.check, "from_step": options.from_step}
    return start(opened.target, opened.settings, opened.fake_devices, **given, **how)


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
    """Build the experiment and run it on all processes."""
    function, experiment = made(target, settings, fake_devices, check)
    from meshwright.engine._internal import run
    from meshwright.processes import _internal as processes

    told = with_secrets(function, settings)
    defaults = defaults_of(function, settings)
    origin = {"target": target, "settings": told, "defaults": defaults, "fake_devices": fake_devices}
    how = {"strict": strict, "from_step": from_step, "started": started, "verbose": verbose}
    try:
        outcome = run(experiment, origin=origin, **how)
    finally:
        ignore_signals()
    found = {"workdir": experiment.workdir, **outcome.summary()}
    if not processes.is_lead():
        return EXIT_DONE
    return _summary(found, next_commands(shlex.quote(experiment.workdir))), found


def made(
    target: str,
    settings: Mapping[str, str],
    fake_devices: int | None,
    check: Callable[[Callable[..., Any]], None] | None,
) -> tuple[Callable[..., Any], Any]:
    """Join the processes, and return the function and the experiment that it makes."""
    if fake_devices:
        use_fake_devices(fake_devices)
    from meshwright.engine._internal import Experiment
    from meshwright.processes import _internal as processes

    processes.start_processes()
    with processes.shared_work(), processes.sharing_errors():
        function = load(target)
        if check is not None:
            check(function)
        return function, build(function, settings, Experiment)


def use_fake_devices(number: int) -> None:
    """Make JAX see `number` CPU devices. Call this before JAX is first used."""
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
    from meshwright.report._internal import PAGE

    scores = [f"{name} {value:.4g}" for name, value in found["scores"].items()]
    done = [f"done: step {found['step']} in {found['seconds']:.1f} s", *scores, f"run {found['workdir']}"]
    page = Path(found["workdir"]) / PAGE
    told = wrapped(f" {'   '.join(done)}", width=screen_width(), indent="   ")
    lines = [f"\n{told}", f" page: {page}\n" if page.exists() else ""]
    return "\n".join([*lines, *(f"   {program()} {command}" for command in commands)])
