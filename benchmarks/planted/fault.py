"""A program with a planted fault, the command that is meant for it, and what that must say."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MESHWRIGHT = [sys.executable, "-m", "meshwright"]
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_LONGEST_SECONDS = 300


class Found(NamedTuple):
    """What a command said of a program."""

    is_named: bool
    """True if it said what it must say, with the exit code that it must end with."""
    seconds: float
    """The seconds from the fault, or from the start of the command, until it was named."""
    said: str
    """All that it said last."""


@dataclass(frozen=True)
class Fault:
    """A planted fault. RUN in a command stands for the directory of the run."""

    name: str
    """The name of the function that makes the experiment, and of the fault."""
    program: Path
    """The file with that function, which takes the workdir."""
    command: Sequence[str]
    """The words of the command that is meant for it, after `meshwright`."""
    says: str
    """A pattern for what the command must say."""
    exit_code: int = 0
    """The exit code of the command."""
    first: Sequence[Sequence[str]] = ()
    """Commands that are run before it, which make the run; whatever they end with is taken."""
    beside: Sequence[str] = ()
    """The command that makes a run which goes on while it is asked; it is killed afterwards."""
    pause_seconds: float = 0.0
    """The time between two of the commands before."""
    environ: dict[str, str] = field(default_factory=dict)
    """Environment variables of all of them."""

    def try_in(self, folder: Path) -> Found:
        """Play the fault in a folder of its own, and ask the command.

        Args:
          folder: An empty folder.
        """
        for number, words in enumerate(self.first):
            time.sleep(self.pause_seconds if number else 0.0)
            self._run(words, folder)
        if not self.beside:
            started = time.monotonic()
            done = self._run(self.command, folder)
            return self._found(done, started)
        run = self._start(self.beside, folder)
        try:
            return self._ask(folder)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()

    def _ask(self, folder: Path) -> Found:
        """Ask again and again from the moment when the fault has happened."""
        begun = time.monotonic()
        happened = folder / "happened"
        while not happened.exists() and time.monotonic() < begun + _LONGEST_SECONDS:
            time.sleep(0.05)
        started = time.monotonic()
        while True:
            found = self._found(self._run(self.command, folder), started)
            if found.is_named or found.seconds > _LONGEST_SECONDS:
                return found

    def _found(self, done: subprocess.CompletedProcess[str], started: float) -> Found:
        said = done.stdout + done.stderr
        is_named = re.search(self.says, said, re.DOTALL) is not None and done.returncode == self.exit_code
        return Found(is_named, time.monotonic() - started, f"{said}\nexit code {done.returncode}")

    def _words(self, words: Sequence[str], folder: Path) -> list[str]:
        names = {
            "PYTHON": sys.executable,
            "RUN": str(folder / "run"),
            "PROGRAM": f"{self.program}:{self.name}",
        }
        return [*MESHWRIGHT, *(names.get(word, word).replace("=RUN", f"={names['RUN']}") for word in words)]

    def _environ(self, folder: Path) -> dict[str, str]:
        ours = {"JAX_PLATFORMS": "cpu", "COLUMNS": "500", "PLANTED": str(folder)}
        return {**os.environ, "XLA_FLAGS": _QUICK, **ours, **self.environ}

    def _run(self, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._words(words, folder),
            capture_output=True,
            text=True,
            env=self._environ(folder),
            cwd=ROOT,
            timeout=_LONGEST_SECONDS,
        )

    def _start(self, words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        output = (folder / "output").open("wb")
        with output:
            return subprocess.Popen(
                self._words(words, folder),
                stdout=output,
                stderr=output,
                env=self._environ(folder),
                cwd=ROOT,
                start_new_session=True,
            )


TRAIN = ("train", "PROGRAM", "workdir=RUN")


def explained(program: str) -> Callable[[str, str], Fault]:
    """Return a maker of faults that `meshwright inspect` must name, from a name and a pattern."""
    return lambda name, says, **more: Fault(
        name, Path(program), ("inspect", "RUN"), f"What would help most: {says}", first=(TRAIN,), **more
    )


def asked(program: str) -> Callable[[str, str], Fault]:
    """Return a maker of faults that `meshwright doctor RUN` must name while the run stands still."""
    return lambda name, says, **more: Fault(
        name, Path(program), ("doctor", "RUN"), says, beside=TRAIN, **more
    )


def refused(program: str) -> Callable[[str, str, int], Fault]:
    """Return a maker of faults that end `meshwright train` with a message and an exit code."""
    return lambda name, says, exit_code, **more: Fault(
        name, Path(program), TRAIN, says, exit_code=exit_code, **more
    )
