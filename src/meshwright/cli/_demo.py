"""`meshwright demo`: a real run at first sight, and with `--kill` one that is killed and goes on."""

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshwright.cli import _train
from meshwright.metrics import read_jsonl

FAKE_DEVICES = 8
MESH = "data=2,fsdp=2,tensor=2"
KILLED_AFTER = {"digits": 350, "text": 60}
"""Steps; not those of a checkpoint, so that some work is lost and done again."""


def demo(options: argparse.Namespace) -> int | _train.Result:
    """Train `digits` or `text`; a run that was stopped is continued, a finished one left alone."""
    fake_devices = FAKE_DEVICES if options.fake_devices is None else options.fake_devices
    mesh = {"mesh": MESH} if fake_devices == FAKE_DEVICES else {}
    settings = {"run": unfinished(options.name)} | mesh | options.settings
    if options.kill:
        return killed_and_continued(options.name, settings, fake_devices)
    return _train.start(
        f"meshwright.demo.{options.name}:experiment",
        settings,
        fake_devices,
        next_commands=lambda run: suggestions(options.name, run),
    )


def unfinished(name: str) -> str:
    """Return the first of `runs/name`, `runs/name-2` … that has not been trained to its end."""
    numbered = (f"runs/{name}" + (f"-{i}" if i > 1 else "") for i in itertools.count(1))
    return next(run for run in numbered if not (Path(run) / "outcome.json").exists())


def suggestions(name: str, run: str) -> Sequence[str]:
    """Return three commands to go on with."""
    other = "text" if name == "digits" else "digits"
    return (
        f"inspect {run}",
        f"train meshwright.demo.{name}:experiment --fake-devices 8 mesh=fsdp=8 run={run}-fsdp",
        f"demo {other}",
    )


def killed_and_continued(name: str, settings: Mapping[str, str], fake_devices: int) -> int:
    """Train in a process of its own, kill that without warning on the way, and start it again."""
    command = [sys.executable, "-m", "meshwright", "demo", name, "--fake-devices", str(fake_devices)]
    command += [f"{key}={value}" for key, value in settings.items()]
    first = subprocess.Popen(command)
    if not _reaches(KILLED_AFTER[name], first, Path(settings["run"]) / "metrics.jsonl"):
        return first.wait()
    first.kill()
    first.wait()
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    print(
        f"{show_cursor}\n  ✗ killed (SIGKILL: no warning, no clean-up). The same command again:\n",
        file=sys.stderr,
    )
    return subprocess.call(command)


def _reaches(step: int, child: subprocess.Popen[bytes], metrics: Path) -> bool:
    """Wait until `child` has reported `step`; False if it ended before."""
    while child.poll() is None:
        if metrics.exists() and any(report["step"] >= step for report in read_jsonl(metrics)):
            return True
        time.sleep(0.02)
    return False
