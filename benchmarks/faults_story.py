"""A run of four local processes with eight faults, the page of which must alone tell what happened.

`meshwright launch local --restarts` runs `benchmarks/planted/story.py`. At equal parts of the
steps something happens to it: a process is killed, its reading hangs, it is stopped, the disk is full, a
batch is bad, a machine is slow, the run is preempted, and the machine is lost, with a damaged checkpoint. At
the end each must be told on the page, the seconds of the ledger must add up to the wall clock within 1 %,
from the start of the first process to the end of the run, and each step must have been reported once.
With `--tiny` two of the faults happen to two processes, in less than a minute.
"""

import argparse
import html
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from meshwright.base._text import aligned
from meshwright.checkpoints._directory import complete_steps, step_name
from meshwright.errors import EXIT_AGAIN
from meshwright.observe._jsonl import read_jsonl
from meshwright.processes._heartbeat import read_entries
from meshwright.report._ledger import read_ledger
from meshwright.report._run import read_run

ROOT = Path(__file__).parent.parent
MESHWRIGHT = (sys.executable, "-W", "ignore", "-m", "meshwright")
PROGRAM = "benchmarks.planted.story:experiment"
STEPS_A_SECOND, FAULTS_TAKE = 18, 150
"""The speed between the faults, and the seconds that all of them take together."""
LONGEST_SECONDS = 240
LEARNS_STEPS = 40
"""The steps after a start after which the run knows what is usual."""


class Story:
    """A launch of the run, which may be started again, and what it has said so far."""

    def __init__(self, folder: Path, num_processes: int, num_steps: int):
        self.run, self.num_steps, self.begun_at = folder / "run", num_steps, 0
        self._num_processes = str(num_processes)
        self._folder, self._out = folder, folder / "out.txt"
        self._faults = folder / "faults"
        self._faults.mkdir()

    def start(self) -> None:
        train = (*MESHWRIGHT, "train", PROGRAM, "--fake-devices", "1", f"workdir={self.run}")
        launch = (*MESHWRIGHT, "launch", "local", "-n", self._num_processes, "--restarts", "5", "--")
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "PYTHONPATH": paths, "FAULTS": str(self._faults)}
        with self._out.open("a") as out:
            words = [*launch, *train, f"max_steps={self.num_steps}"]
            self.launcher = subprocess.Popen(words, env=environ, cwd=ROOT, stdout=out, stderr=out)

    def first_process(self) -> float:
        """Return the time at which the launcher has started a process."""
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
        while not children.read_text():
            time.sleep(0.01)
        return time.time()

    def said(self) -> str:
        return self._out.read_text()

    def step(self) -> int:
        """Return the newest step that was reported."""
        path = self.run / "metrics.jsonl"
        return max((report["step"] for report in read_jsonl(path)), default=0) if path.exists() else 0

    def wait_for_step(self, step: float) -> None:
        while self.step() < step:
            if self.launcher.poll() is not None:
                raise SystemExit(f"the run has ended:\n{self.said()}")
            time.sleep(0.1)

    def signal(self, process: int, number: int) -> None:
        os.kill(read_entries(self.run / "board")[process].pid, number)

    def ask(self, what: str, process: int) -> Path:
        """Ask a process for a fault, until the file that is returned is removed."""
        file = self._faults / f"{what}-{process}"
        file.touch()
        return file

    def wait_for(self, words: str, before: int = 0) -> None:
        """Wait until the run has said some words more often than before."""
        give_up = time.monotonic() + LONGEST_SECONDS
        while self.said().count(words) <= before:
            if time.monotonic() > give_up or self.launcher.poll() not in (None, 0):
                raise SystemExit(f"the run does not say {words!r}:\n{self.said()}")
            time.sleep(0.1)

    def wait_until_it_trains(self, before: int) -> None:
        self.wait_for("continuing after step", before)
        at = self.step()
        give_up = time.monotonic() + LONGEST_SECONDS
        while self.step() in (at, 0) and time.monotonic() < give_up:
            time.sleep(0.1)


def kill(story: Story) -> None:
    story.signal(2, signal.SIGKILL)


def hang(story: Story) -> None:
    file = story.ask("reading-hangs", 1)
    story.wait_for("failed first, with exit code 5")
    file.unlink()


def stop(story: Story) -> None:
    others = "process 0 stands still"
    before = story.said().count(others)
    story.signal(3, signal.SIGSTOP)
    story.wait_for("Process 3 is stopped by a signal")
    story.wait_for(others, before)
    story.signal(3, signal.SIGCONT)


def fill_the_disk(story: Story) -> None:
    file = story.ask("disk-full", 0)
    story.wait_for("No space left on device")
    file.unlink()


def spoil_a_batch(story: Story) -> None:
    story.wait_for("loss spike")


def slow_down(story: Story) -> None:
    file = story.ask("slow", 3)
    story.wait_for("process 3 is slower than the others")
    file.unlink()


def preempt(story: Story) -> None:
    story.launcher.terminate()
    code = story.launcher.wait(LONGEST_SECONDS)
    assert code == EXIT_AGAIN, f"exit code {code}:\n{story.said()}"
    time.sleep(5)
    story.start()


def lose_the_machine(story: Story) -> None:
    story.launcher.kill()
    story.launcher.wait(LONGEST_SECONDS)
    time.sleep(5)
    checkpoints = story.run / "checkpoints"
    newest = checkpoints / step_name(max(complete_steps(checkpoints)))
    largest = max(newest.iterdir(), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)
    story.start()


@dataclass(frozen=True)
class Fault:
    """Something that happens to the run."""

    name: str
    at: float
    """The share of the steps after which it happens."""
    happen: object
    """Makes it happen, and waits until it was noticed."""
    is_restarted: bool
    """Whether the run starts again after it."""
    told: str
    """A pattern of what the page says."""


FAULTS = (
    Fault("process 2 is killed", 0.08, kill, True, "process 2 of 4 failed first, with signal SIGKILL"),
    Fault("reading hangs on process 1", 0.18, hang, True, "Process 1 stands in the phase input"),
    Fault("process 3 is stopped for a while", 0.29, stop, False, "Process 3 is stopped by a signal"),
    Fault("the disk is full", 0.4, fill_the_disk, True, "No space left on device"),
    Fault("a bad batch", 0.5, spoil_a_batch, False, r"\d+ loss \d{5,} [\d.]+ [\d,]+ [\d,]+ to [\d,]+"),
    Fault("process 3 is slow", 0.64, slow_down, False, "process 3 is slower than the others by"),
    Fault("preempted", 0.77, preempt, True, "SIGTERM"),
    Fault(
        "the machine is lost, a checkpoint damaged",
        0.89,
        lose_the_machine,
        True,
        "is damaged; continuing from",
    ),
)


TINY_STEPS = 130
TINY_FAULTS = (
    FAULTS[4],
    Fault(
        "process 1 is killed",
        0.85,  # after the first checkpoint
        lambda story: story.signal(1, signal.SIGKILL),
        True,
        "process 1 of 2 failed first, with signal SIGKILL",
    ),
)


def play(story: Story, faults: tuple[Fault, ...]) -> None:
    """Let each fault happen at its step; print when, and how long it took to train again."""
    begin = time.monotonic()
    for fault in faults:
        story.wait_for_step(max(fault.at * story.num_steps, story.begun_at + LEARNS_STEPS))
        before, start = story.said().count("continuing after step"), time.monotonic()
        fault.happen(story)
        if fault.is_restarted:
            story.wait_until_it_trains(before)
            story.begun_at = story.step()
        seconds = time.monotonic() - start
        print(f"{start - begin:6.0f} s  {fault.name:42} {seconds:5.1f} s", file=sys.stderr, flush=True)
    story.launcher.wait()


def text_of(page: str) -> str:
    """Return what a reader sees of a page."""
    body = re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def check(story: Story, faults: tuple[Fault, ...], seconds: float | None) -> bool:
    """Print what the page says of each fault, and what the ledger adds up to; return whether all is right.

    `seconds` are those that the run took, against which the ledger is judged; None: it is not.
    """
    page = text_of((story.run / "report.html").read_text())
    rows = [("fault", "on the page")]
    for fault in faults:
        found = re.search(fault.told, page)
        rows.append((fault.name, page[found.start() :][:90] if found else "NO"))
    print("\n".join(aligned(rows)))
    ledger, run = read_ledger(story.run / "ledger.json"), read_run(story.run)
    steps = [report["step"] for report in read_jsonl(story.run / "metrics.jsonl") if "loss" in report]
    once = all(a < b for a, b in itertools.pairwise(steps)) and steps[-1] == story.num_steps
    print(f"{run.ending.state}, {ledger.attempts} attempts, {ledger.failures} failures, {steps[-1]} steps")
    print(f"each report once: {'yes' if once else 'NO'}")
    is_right = "NO" not in (told for _, told in rows) and once and run.ending.state == "finished"
    if seconds is None:
        return is_right
    off = abs(ledger.total - seconds) / seconds
    print(f"the ledger has {ledger.total:.1f} s of {seconds:.1f} s: {100 * off:.2f} % off")
    return is_right and off < 0.01


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--page", type=Path, help="copy the page of the run to this file")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    num_steps = round(max(60, options.minutes * 60 - FAULTS_TAKE) * STEPS_A_SECOND)
    processes, faults = 4, FAULTS
    if options.tiny:
        processes, num_steps, faults = 2, TINY_STEPS, TINY_FAULTS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        story = Story(Path(name), processes, num_steps)
        story.start()
        began = story.first_process()
        try:
            play(story, faults)
        finally:
            story.launcher.kill()
        seconds = (story.run / "outcome.json").stat().st_mtime - began
        is_right = check(story, faults, None if options.tiny else seconds)
        if options.page:
            options.page.write_bytes((story.run / "report.html").read_bytes())
    if not is_right:
        raise SystemExit("not all is told")


if __name__ == "__main__":
    main()
