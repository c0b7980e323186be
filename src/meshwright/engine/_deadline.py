"""Until when a run may go on: as its settings say, and as the scheduler says of its job."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwright import process
from meshwright.metrics import duration


@dataclass(frozen=True)
class Limit:
    """A time on the clock `time.monotonic`, and what to say of it when it has passed."""

    until: float
    why: str


@dataclass(frozen=True)
class Deadline:
    """The limits of a run on process 0, which has the clock for all."""

    limits: Sequence[Limit]
    is_set: bool
    """True if process 0 has any limit."""

    def passed(self) -> str | None:
        """Return why the run is out of time, or None. Collective if any limit is set."""
        if not self.is_set:
            return None
        now = time.monotonic()
        return process.agree(next((limit.why for limit in self.limits if now >= limit.until), None))


def deadline(
    max_seconds: float | None, started: float, job_margin_seconds: float | None, say: Callable[[str], None]
) -> Deadline:
    """Return until when a run may go on, and tell of what the scheduler says. Collective.

    Args:
      max_seconds: how long it may take.
      started: when it was called for, on the clock `time.monotonic`.
      job_margin_seconds: so long before the scheduler ends the job it saves; None does not look.
      say: tells people a line.

    Raises:
      UsageError: the scheduler's variable holds no number.
    """
    limits = [] if max_seconds is None else [Limit(started + max_seconds, "max_seconds is over")]
    job = None if job_margin_seconds is None else process.on_lead(process.job_end)
    if job is not None and job_margin_seconds is not None:
        scheduler, variable, end = job
        left = end - time.time()
        if left <= 0:
            say(f"  ! {variable} is in the past: that {scheduler} ends the job is not looked at")
        else:
            margin = f"{job_margin_seconds:g} s"
            told = f"{scheduler} ends this job in {duration(left)}"
            say(f"  {told}: the run saves and ends {margin} before that (job_margin_seconds)")
            why = f"{scheduler} ends the job in {margin}"
            limits.append(Limit(time.monotonic() + left - job_margin_seconds, why))
    return Deadline(limits, process.agree(bool(limits)))
