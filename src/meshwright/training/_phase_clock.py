"""The phases of a run, and the seconds that a process has spent in each.

The main thread enters phases; other threads may look at any time. An entry costs one reading of the clock,
and takes no lock: the seconds of all phases together are always exactly the time since the start, and a
thread that looks in the middle of an entry may count this one interval to the neighbouring phase.
"""

import math
import time
from collections.abc import Callable

STEP, START, INPUT, REPORT, SAVE, END = "step", "start", "input", "report", "save", "end"
PHASES = (STEP, START, "first_batch", "restore", "compile", INPUT, "evaluation", REPORT, SAVE, END)
"""The phases of an experiment's run. `start` lasts until the first step is done, and `end` begins after
the last step. `input` is the wait for a batch, `report` the writing of a report, with the user's trackers.
The phases except for `step`, `start` and `end` may interrupt these three."""
STALL = "stall"
"""The name for the time by which steps took far longer than usual."""
_STALL_FACTOR = 10
"""A step that takes this many times as long as usual stalls. Loops run some steps ahead of the devices, so
that one step in five may take five times as long."""
_SHORTEST_STALL = 1.0
"""The shortest step, in seconds, that counts as a stall."""
_LEARNED = frozenset((STEP, INPUT, REPORT))
"""The phases of which each one is like the last, so that the longest so far is usual."""
_UNUSUAL_FACTOR = 5
"""A phase that takes this many times as long as the longest so far is unusual."""
_ENOUGH_STEPS = 20
"""The number of steps after which the usual time of a step is known."""


class PhaseClock:
    """The phase and the last step of a process, and the seconds that it spent in each phase so far.

    Example:
      >>> times = iter([0.0, 2.0, 5.0, 6.0])
      >>> clock = mw.training._internal.PhaseClock(clock=lambda: next(times))
      >>> clock.enter("compile")
      'start'
      >>> clock.enter("step")
      'compile'
      >>> clock.seconds()
      {'start': 2.0, 'compile': 3.0, 'step': 1.0}
    """

    def __init__(self, started: float | None = None, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.started = clock() if started is None else started
        """The time from which the phase `start` counts."""
        self.phase = START
        """The present phase."""
        self.step: int | None = None
        """The last step that has finished; None before the first."""
        self.turns = 0
        """The number of steps and phases so far, which grows while the process makes progress."""
        self._longest = dict.fromkeys(_LEARNED, 0.0)
        """The longest time without a turn of each phase that is usual."""
        self._past: dict[str, float] = {}
        self._past_total = 0.0
        self._turn_began = 0.0
        """The seconds in the phase `step` before the present step."""
        self._num_steps = 0

    def enter(self, phase: str) -> str:
        """Count the time from now on to `phase`, and return the phase before."""
        previous, total, past = self.phase, self._clock() - self.started, self._past
        spent = total - self._past_total
        past[previous] = past.get(previous, 0.0) + spent
        if previous in _LEARNED and spent > self._longest[previous]:
            self._longest[previous] = spent
        self._past_total, self.phase = total, phase
        self.turns += 1
        return previous

    def finish_step(self, step: int) -> None:
        """Note that a step has finished; time after it is in the phase `step`."""
        self.enter(STEP)
        self.step = step
        self._num_steps += 1
        past = self._past
        if stalled := self._stalled(past.get(STEP, 0.0)):
            past[STALL] = past.get(STALL, 0.0) + stalled
            past[STEP] -= stalled
        self._turn_began = past.get(STEP, 0.0)

    def mark_progress(self) -> None:
        """Note that the work of the present phase gets on, as after a batch of an evaluation."""
        self.turns += 1

    def record_usual(self, seconds: float = 0.0) -> None:
        """Note that the present phase took its usual time so far, as when an evaluation is complete."""
        spent = self._clock() - self.started - self._past_total
        self._longest[self.phase] = max(spent, seconds, self._longest.get(self.phase, 0.0))

    def has_baseline(self) -> bool:
        """Return whether the usual time of the present phase is known."""
        return self.phase in self._longest and self._num_steps >= _ENOUGH_STEPS

    def limit_seconds(self, shortest: float, first: float = math.inf) -> float:
        """Return the time without a turn in the present phase after which it is unusually long."""
        limit = max(shortest, _UNUSUAL_FACTOR * self._longest.get(self.phase, 0.0))
        return limit if self.has_baseline() else max(limit, first)

    def usual_seconds(self) -> float | None:
        """Return the mean time of a step, in seconds, without stalls; None until there were some steps."""
        if self._num_steps < _ENOUGH_STEPS:
            return None
        return self._turn_began / self._num_steps

    def seconds(self, current_time: float | None = None) -> dict[str, float]:
        """Return the seconds of each phase so far, and of stalls; the sum is the time since the start."""
        past, phase = dict(self._past), self.phase
        total = (self._clock() if current_time is None else current_time) - self.started
        past[phase] = past.get(phase, 0.0) + total - sum(past.values())
        if stalled := self._stalled(past.get(STEP, 0.0)):
            past[STALL] = past.get(STALL, 0.0) + stalled
            past[STEP] -= stalled
        return past

    def _stalled(self, step_seconds: float) -> float:
        """Return the seconds by which the present step has stalled, from those of all steps; 0 if not."""
        took, usual = step_seconds - self._turn_began, self.usual_seconds()
        if took < _SHORTEST_STALL or usual is None or took < _STALL_FACTOR * usual:
            return 0.0
        return took - usual
