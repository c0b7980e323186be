"""The summary at the end of a launch: which process failed first, for what cause, and what the others did."""

import re
import signal
from collections import defaultdict
from collections.abc import Sequence

from meshwright.errors import EXIT_AGAIN, EXIT_CTRL_C, EXIT_DONE, EXIT_FAILED, EXIT_PEERS
from meshwright.launch._output import ranges
from meshwright.launch._process import Outcome

_ORDERLY = (EXIT_DONE, EXIT_AGAIN, EXIT_CTRL_C)
"""Exit codes after which the other processes end by themselves, and may still be saving."""

_OF_A_PROCESS = re.compile(r"[Ee]rror: process (\d+): ")
"""Start of an error that another process reported to this one."""
_OF_A_LOST_PEER = re.compile(
    r"JAX distributed service detected fatal errors|coordination service"
    r"|(Gloo|NCCL) .*(closed by peer|reset by peer|Broken pipe|remote process)"
)
"""Last lines of a process that ended because another one did, where Meshwright did not end it first."""


def has_failed(process: Outcome) -> bool:
    """Return whether a process has ended in a way that ends the run."""
    return process.exit_code not in _ORDERLY


def causes(ended: Sequence[Outcome]) -> list[Outcome]:
    """Return the processes that failed for a cause of their own, in the order of their ends.

    The order alone does not tell which was first: a process that dies closes its connections before the
    launcher can notice its end, so another one that loses the connection may be seen to end before it.
    """
    failed = [process for process in ended if has_failed(process)]
    if not failed:
        return []
    own = [process for process in failed if not _fails_for_another(process)]
    left = [process for process in ended if process.exit_code == EXIT_DONE]
    return own or left or failed


def code_of(first: Outcome) -> int:
    """Return the exit code of a launch in which this process failed first: from 1 to 255."""
    code = first.exit_code if has_failed(first) else EXIT_PEERS
    return code if code > 0 else 128 - code


def summary(
    processes: Sequence[Outcome],
    ended: Sequence[Outcome],
    saved: int | None,
    *,
    silent: str = "killed by the launcher",
) -> str:
    """Return the summary of a launch that failed.

    Args:
      processes: All processes.
      ended: The processes that ended by themselves, in the order of their ends.
      saved: Step of the newest checkpoint; None if the launcher knows of none.
      silent: Says what became of the processes that did not end by themselves.
    """
    first, total = causes(ended)[0], len(processes)
    end = end_text(first.exit_code)
    what = (
        f"failed first, with {end}"
        if has_failed(first)
        else f"left with {end} while the others were not done"
    )
    lines = [
        f"process {first.number} of {total} {what}. It ran on {first.host}. Its last lines:",
        *(f"  {line}" for line in first.last_lines or ["(none)"]),
    ]
    others = defaultdict(list)
    for process in processes:
        if process is not first:
            end = end_text(process.exit_code) if process in ended else silent
            others[end].append(process.number)
    lines += [f"process {ranges(numbers, total)}: {end}" for end, numbers in others.items()]
    if saved is not None:
        lines.append(f"the newest checkpoint is of step {saved}")
    return "\n  ".join(lines)


def _fails_for_another(process: Outcome) -> bool:
    """Return whether the exit code or the last lines say that it ended because another process failed."""
    if process.exit_code == EXIT_PEERS:
        return True
    failed = (_OF_A_PROCESS.search(line) for line in process.last_lines)
    if any(found and int(found[1]) != process.number for found in failed):
        return True
    is_told = any(_OF_A_LOST_PEER.search(line) for line in process.last_lines)
    return process.exit_code in (-signal.SIGABRT, EXIT_FAILED) and is_told


def end_text(exit_code: int) -> str:
    """Return how a process ended, as text: its exit code or the signal."""
    if exit_code < 0:
        return f"signal {signal.Signals(-exit_code).name}"
    meaning = {EXIT_PEERS: " (another process was gone)", EXIT_AGAIN: " (stopped, all is saved)"}
    return f"exit code {exit_code}{meaning.get(exit_code, '')}"
