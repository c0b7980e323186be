"""The time limits of a run: from its settings, and from the scheduler, which ends the job at some time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwright.base._internal import duration
from meshwright.processes import _internal as processes


@dataclass(frozen=True)
class Limit:
    """A time limit and the reason for it."""

    until: float
    """The time on the clock `time.monotonic`."""
    reason: str
    """A message for when the time has passed."""


@dataclass(frozen=True)
class Deadline:
    """The time limits of a run. The clock of process 0 decides for all processes."""

    limits: Sequence[Limit]
    is_set: bool
    """True if process 0 has any limit."""

    def passed(self) -> str | None:
        """Return why the run is out of time, or None if it is not. Collective if a limit is set."""
        if not self.is_set:
            return None
        now = time.monotonic()
        return processes.agree(next((limit.reason for limit in self.limits if now >= limit.until), None))


def deadline(
    max_seconds: float | None, started: float, job_margin_seconds: float | None, say: Callable[[str], None]
) -> Deadline:
    """Return the time limits of a run, and show the user those of the scheduler. Collective."""
    limits = [] if max_seconds is None else [Limit(started + max_seconds, "max_seconds is over")]
    job = None if job_margin_seconds is None else processes.on_lead(processes.job_end)
    if job is not None and job_margin_seconds is not None:
        scheduler, variable, end = job
        left = end - time.time()
        if left <= 0:
            say(f"  ! {variable} is in the past, so the run ignores it and does not end before the job does")
        else:
            margin, remaining = f"{job_margin_seconds:g} s", duration(left)
            say(
                f"  {scheduler} ends this job in {remaining}: the run saves and ends {margin} before that "
                "(job_margin_seconds)"
            )
            reason = f"{scheduler} ends the job in {margin}"
            limits.append(Limit(time.monotonic() + left - job_margin_seconds, reason))
    return Deadline(limits, processes.agree(bool(limits)))
