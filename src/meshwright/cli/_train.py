"""`meshwright train`: run an experiment given by its function and settings."""

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.base import _internal as base
from meshwright.cli._parser import Commands, Result
from meshwright.cli._process import ignore_signals, program
from meshwright.cli._recipe import Recipe, load_experiment, origin_of, recipe_of
from meshwright.cli._target import add_target
from meshwright.errors import EXIT_DONE
from meshwright.plan import _internal as plan
from meshwright.processes import _internal as processes
from meshwright.report import _internal as report


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings("train", train)
    add_target(command)
    add_strict(command)
    add_verbose(command)


def add_strict(command: argparse.ArgumentParser) -> None:
    """Add the option of the commands that may continue a run with other settings."""
    command.add_argument(
        "--strict",
        action="store_true",
        help="refuse to continue a run with changed settings (default: print the changes and continue)",
    )


def add_verbose(command: argparse.ArgumentParser) -> None:
    """Add the option of the commands that train."""
    command.add_argument(
        "--verbose", action="store_true", help="show every array and every check before the first step"
    )


def train(options: argparse.Namespace) -> Result:
    """Run the experiment that `module:function` returns."""
    return start(recipe_of(options), strict=options.strict, verbose=options.verbose, started=options.started)


def start(
    recipe: Recipe,
    *,
    next_commands: Callable[[str], Sequence[str]] = lambda run: (f"inspect {run}",),
    strict: bool = False,
    from_step: int | None = None,
    started: float | None = None,
    verbose: bool = False,
) -> Result:
    """Build the experiment and run it on all processes."""
    function, experiment = load_experiment(recipe)
    how = {"strict": strict, "from_step": from_step, "started": started, "verbose": verbose}
    try:
        outcome = plan.run(experiment, origin=origin_of(function, recipe), **how)
    finally:
        ignore_signals()
    document = {"workdir": experiment.workdir, **outcome.summary()}
    if not processes.is_lead():
        return EXIT_DONE
    return _summary(document, next_commands(shlex.quote(experiment.workdir))), document


def _summary(document: Mapping[str, Any], commands: Sequence[str]) -> str:
    scores = [f"{name} {value:.4g}" for name, value in document["scores"].items()]
    seconds = f"{document['seconds']:.1f} s"
    done = [f"done: step {document['step']} in {seconds}", *scores, f"run {document['workdir']}"]
    page = Path(document["workdir"]) / report.PAGE
    head = base.wrapped(f" {'   '.join(done)}", width=base.screen_width(), indent="   ")
    lines = [f"\n{head}", f" page: {page}\n" if page.exists() else ""]
    return "\n".join([*lines, *(f"   {program()} {command}" for command in commands)])
