"""`meshwright demo`: train a small real model; with `--kill`, kill the training and continue it."""

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import Recipe
from meshwright.cli._train import add_verbose, start
from meshwright.observe import _internal as observe
from meshwright.report import _internal as report

FAKE_DEVICES = 8
MESH = "data=2,fsdp=2,tensor=2"
KILLED_AFTER = {"digits": 350, "text": 60}
"""The step to kill each demo after. No checkpoint is saved there, so some steps are lost and redone."""


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings("demo", demo)
    command.add_argument(
        "name", nargs="?", choices=("digits", "text"), default="digits", help="default: digits"
    )
    command.add_argument(
        "--kill",
        action="store_true",
        help="kill the training half way, then continue it in a second process",
    )
    add_verbose(command)


def demo(options: argparse.Namespace) -> Result:
    """Train `digits` or `text`. A stopped run is continued; after a finished one, a new run is started."""
    fake_devices = FAKE_DEVICES if options.fake_devices is None else options.fake_devices
    mesh = {"mesh": MESH} if fake_devices == FAKE_DEVICES else {}
    settings = {"workdir": unfinished(options.name)} | mesh | options.settings
    if options.kill:
        return killed_and_continued(options, settings, fake_devices)
    target = f"meshwright.cli.demo.{options.name}:experiment"
    return start(
        Recipe(target, settings, fake_devices, options.flags),
        verbose=options.verbose,
        next_commands=lambda run: suggestions(options.name, run),
        started=options.started,
    )


def unfinished(name: str) -> str:
    """Return the first of `runs/name`, `runs/name-2`, … that is not a finished run."""
    numbered = (f"runs/{name}" + (f"-{i}" if i > 1 else "") for i in itertools.count(1))
    return next(run for run in numbered if not _is_finished(Path(run)))


def _is_finished(run: Path) -> bool:
    return report.is_run(run) and report.read_run(run).ending.state == "finished"


def suggestions(name: str, run: str) -> Sequence[str]:
    """Return three commands to try next."""
    other = "text" if name == "digits" else "digits"
    return (
        f"inspect {run}",
        f"train meshwright.cli.demo.{name}:experiment --fake-devices 8 mesh=fsdp=8 workdir={run}-fsdp",
        f"demo {other}",
    )


def killed_and_continued(options: argparse.Namespace, settings: Mapping[str, str], fake_devices: int) -> int:
    """Train in a child process, kill that without warning half way, and start it again."""
    import subprocess

    command = [sys.executable, "-m", "meshwright", "demo", options.name, "--fake-devices", str(fake_devices)]
    command += [f"{key}={value}" for key, value in settings.items()] + ["--json"] * options.json
    command += ["--verbose"] * options.verbose
    metrics = Path(settings["workdir"]) / "metrics.jsonl"
    with subprocess.Popen(command) as first:
        try:
            reached = _reaches(max(KILLED_AFTER[options.name], _last_step(metrics) + 1), first, metrics)
        except KeyboardInterrupt:  # the child got the signal too: let it save and report
            return first.wait()
        first.kill()
    if not reached:
        print("  (it ended before it could be killed)", file=sys.stderr)
        return first.returncode
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    killed = "✗ killed (SIGKILL: no warning, no clean-up). The same command again:"
    print(f"{show_cursor}\n  {killed}\n", file=sys.stderr)
    return subprocess.call(command)


def _reaches(step: int, child: Any, metrics: Path) -> bool:
    """Wait until `child` has reported `step`; return False if it ended before that."""
    while child.poll() is None:
        if _last_step(metrics) >= step:
            return True
        time.sleep(0.02)
    return False


def _last_step(metrics: Path) -> int:
    rows = observe.read_jsonl(metrics) if metrics.exists() else ()
    return max((int(row["step"]) for row in rows), default=0)
