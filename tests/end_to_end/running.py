"""Real processes, started as a person would start them. What is slow is started once."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import meshwright as mw
from flags import FAST
from meshwright.errors import InputError
from meshwright.observe._jsonl import read_jsonl

STEPS = 120
SHORT = (f"steps={STEPS}", "logging.every=1", "save.when=20", "width=2048")
"""The digits demo, shorter, of steps slow enough to be killed at, and telling of each."""


QUICK = SHORT[:-1]
"""The same with steps of a millisecond, in which rounding hardly grows."""


class Shell:
    """Runs `meshwright`, or another program that is called as it is, in a folder, by the Python given."""

    def __init__(self, python: list[str], folder: Path, *program: str | Path):
        self.python, self.folder = python, folder
        self.program = program or ("-m", "meshwright")
        self.environ = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
        self.environ["XLA_FLAGS"] = FAST  # and no devices of the tests'
        here = str(Path(__file__).parent)
        self.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))

    def start(self, *words: str, **more) -> subprocess.Popen:
        command = [*self.python, *map(str, self.program), *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=self.environ, **pipes, **more)

    def __call__(self, *words: str) -> subprocess.CompletedProcess:
        child = self.start(*words)
        try:
            out, err = child.communicate(timeout=400)
        finally:
            child.kill()
        return subprocess.CompletedProcess(words, child.returncode, out, err)


def losses(run: Path) -> dict[int, float]:
    """The loss of each step, and that each was reported just once."""
    reported = [
        (report["step"], report["loss"]) for report in read_jsonl(run / "metrics.jsonl") if "loss" in report
    ]
    assert len(dict(reported)) == len(reported)
    return dict(reported)


def final_arrays(run: Path) -> dict[str, bytes]:
    """All arrays of the newest checkpoint, as bytes."""
    source = mw.checkpoints.open_source(run / "checkpoints")
    return {
        name: source.read(name, tuple(slice(0, n) for n in x.shape)).tobytes()
        for name, x in source.arrays().items()
    }


def wait_for(happened: Callable[[], bool], child: subprocess.Popen, seconds: float = 300) -> None:
    """Wait until something is true while `child` is running."""
    give_up = time.monotonic() + seconds
    while child.poll() is None and not happened():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.001)


def processes_of(launcher: subprocess.Popen) -> list[int]:
    """The processes that a launcher has started and that are running, in their order."""
    started = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    return sorted(map(int, started))


def reached(run: Path, step: int) -> Callable[[], bool]:
    def happened() -> bool:
        metrics = run / "metrics.jsonl"
        try:
            return metrics.exists() and any(report["step"] >= step for report in read_jsonl(metrics))
        except InputError:  # it was cut at the step that is continued, between two blocks that were read
            return False

    return happened


def kill(child: subprocess.Popen) -> str:
    """Kill a process, and return what it has written to its standard error."""
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGKILL)
    return child.communicate()[1]
