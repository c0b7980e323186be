"""The outcome of a start: the process that failed first, the exit code, the summary and the restarts."""

import re
import signal
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.errors import (
    EXIT_AGAIN,
    EXIT_CTRL_C,
    EXIT_DIVERGED,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_OF_STOPS,
    EXIT_PEERS,
    EXIT_USAGE,
)
from meshwright.launch._output import numbers_text
from meshwright.launch._process import Outcome

FINAL_EXIT_CODES = (EXIT_DONE, EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED, EXIT_CTRL_C)
"""Exit codes after which a new start would end in the same way, or is not wanted."""


@dataclass(frozen=True)
class Restarts:
    """The restarts that are left. Each checkpoint that is newer than all earlier ones gives them all back.

    Example:
      >>> from meshwright.launch._outcome import Restarts
      >>> once = Restarts(1).after_end(137, saved=None)  # killed before the first checkpoint: start again
      >>> once.remaining, once.after_end(137, saved=None)  # killed again: there was no progress
      (0, None)
      >>> once.after_end(137, saved=100).remaining
      0
    """

    allowed: int
    """Largest number of restarts in a row without a newer checkpoint between them."""
    used: int = 0
    """Number of restarts since the newest checkpoint."""
    saved: int = -1
    """Step of the newest checkpoint at the last start; -1 for none."""

    @property
    def remaining(self) -> int:
        """Number of restarts that are left."""
        return self.allowed - self.used

    def after_end(self, exit_code: int, saved: int | None) -> "Restarts | None":
        """Return the restarts that are left when the run starts again; None if it should not."""
        if exit_code in FINAL_EXIT_CODES:
            return None
        newest = -1 if saved is None else saved
        # Progress gives all restarts back.
        used = 0 if newest > self.saved else self.used
        if used >= self.allowed:
            return None
        return replace(self, used=used + 1, saved=max(newest, self.saved))


# Exit codes after which the other processes end by themselves, and may still be saving.
_ORDERLY = (EXIT_DONE, EXIT_AGAIN, EXIT_CTRL_C)

# Start of an error that names the process because of which this one ended, but not for a third one.
_OF_A_PROCESS = re.compile(
    rf"[Ee]rror: process (\d+)(?:: | is gone| has ended| ended with exit code (?!{EXIT_PEERS}\b))"
)
# The numbers of processes that JAX heard nothing of, each at the end of a line.
_SILENT = re.compile(r"\(stopped sending heartbeats\):\n((?:.*\d\n)+)")
# In the last lines of a process that JAX ended as process 0 did not answer.
_LEAD_SILENT = "CoordinationService/Heartbeat"
# Last lines of a process that ended because another one did, where Meshwright did not end it first.
_OF_A_LOST_PEER = re.compile(
    r"JAX distributed service detected fatal errors|coordination service"
    r"|(Gloo|NCCL) .*(closed by peer|reset by peer|Broken pipe|remote process)"
)
SAVED = "Run the same command again to continue."
"""End of the last line of a process that was stopped and has saved all."""


def has_failed(process: Outcome) -> bool:
    """Return whether a process has ended in a way that ends the run."""
    return process.exit_code not in _ORDERLY


def stop_of(ended: Sequence[Outcome], received: Sequence[int]) -> int:
    """Return the signal that stopped the run, as the launcher received it or a process; 0 for none."""
    codes = {process.exit_code for process in ended}
    return next((stop for stop, code in EXIT_OF_STOPS.items() if stop in received or code in codes), 0)


def causes(ended: Sequence[Outcome], silent: Sequence[Outcome] = (), stop: int = 0) -> list[Outcome]:
    """Return the processes because of which a run has failed, in the order of their ends; none if it has not.

    If a signal stopped the run, those that ended by it, or for another process, have not failed.

    One of the `silent`, which did not end by themselves, is a cause if the others say that they ended because
    of it.
    """
    # The order alone does not tell which was first: a process that dies closes its connections before the
    # launcher can notice its end, so another one that loses the connection may be seen to end before it.
    failed = [process for process in ended if has_failed(process)]
    if not failed:
        return []
    own = [process for process in failed if not fails_for_another(process)]
    if stop:
        return [process for process in own if process.exit_code not in (-stop, 128 + stop)]
    # A process with a cause of its own explains the others, in whatever order they ended.
    if own:
        return own
    # All that failed name other processes, so one of the named ones is the cause.
    blamed = {number for process in failed for number in _blamed_by(process)}
    orderly = [process for process in ended if not has_failed(process)]
    if named := [process for process in (*silent, *orderly, *failed) if process.number in blamed]:
        return named
    return [process for process in orderly if process.exit_code == EXIT_DONE] or failed


def code_of(ended: Sequence[Outcome], silent: Sequence[Outcome] = ()) -> int:
    """Return the exit code of a launch that failed: from 1 to 255. See `causes`."""
    first = causes(ended, silent)[0]
    # This process has no code of its own, or the one for the loss of the others.
    if first in silent or fails_for_another(first):
        failed = [process for process in ended if has_failed(process)]
        first = next((process for process in failed if process.exit_code != EXIT_PEERS), failed[0])
    code = EXIT_PEERS if first.exit_code == EXIT_DONE else first.exit_code
    return code if code > 0 else 128 - code


def summary(
    processes: Sequence[Outcome],
    ended: Sequence[Outcome],
    saved: int | None,
    *,
    silent: str = "killed by the launcher",
) -> str:
    """Return the summary of a launch that failed: of all processes, those that ended by themselves in the
    order of their ends, and the newest checkpoint. `silent` says what became of the other processes.
    """
    others_ended = [process for process in processes if process not in ended]
    first, total = causes(ended, others_ended)[0], len(processes)
    end = end_text(first.exit_code)
    if first not in ended:
        problem = "did not answer, and the others ended because of it"
    elif has_failed(first):
        problem = f"failed first, with {end}"
    else:
        problem = f"left with {end} while the others were not done"
    lines = [
        f"process {first.number} of {total} {problem}. It ran on {first.host}. Its last lines:",
        *(f"  {line}" for line in first.last_lines or ["(none)"]),
    ]
    others = defaultdict(list)
    for process in processes:
        if process is not first or process not in ended:
            end = end_text(process.exit_code) if process in ended else silent
            others[end].append(process.number)
    lines += [f"process {numbers_text(numbers, total)}: {end}" for end, numbers in others.items()]
    if saved is not None:
        lines.append(f"the newest checkpoint is of step {saved}")
    return "\n  ".join(lines)


def fails_for_another(process: Outcome) -> bool:
    """Return whether the exit code or the last lines say that it ended because another process failed."""
    if process.exit_code == EXIT_PEERS or _blamed_by(process):
        return True
    is_told = any(_OF_A_LOST_PEER.search(line) for line in process.last_lines)
    return process.exit_code in (-signal.SIGABRT, EXIT_FAILED) and is_told


def _blamed_by(process: Outcome) -> set[int]:
    """Return the other processes of which this one says that it ended because of them."""
    text = "\n".join(process.last_lines)
    lost = [0] if _LEAD_SILENT in text and not _SILENT.search(text) else []
    silent = [number for block in _SILENT.findall(text) for number in re.findall(r"\d+$", block, re.M)]
    return {int(number) for number in (*lost, *silent, *_OF_A_PROCESS.findall(text))} - {process.number}


def end_text(exit_code: int) -> str:
    """Return how a process ended, as text: its exit code or the signal."""
    if exit_code < 0:
        return f"signal {signal.Signals(-exit_code).name}"
    meaning = {EXIT_PEERS: " (another process was gone)", EXIT_AGAIN: " (stopped, all is saved)"}
    return f"exit code {exit_code}{meaning.get(exit_code, '')}"
