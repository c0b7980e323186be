"""The schedules of a pipeline by name, and that of 1F1B as a plain value."""

from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.errors import UsageError

PipelineSchedule = Literal["gpipe", "1f1b"]
"""The order in which stages go forward and back: "gpipe" goes back when all microbatches went forward, "1f1b"
as soon as the first ones did."""


def check_schedule(schedule: str, rounds: int) -> None:
    """Check the settings of a pipeline."""
    schedules = get_args(PipelineSchedule)
    if schedule not in schedules:
        raise UsageError(f"pipeline_schedule={schedule!r} is not known. It is one of {', '.join(schedules)}.")
    if schedule == "1f1b" and rounds != 1:
        raise UsageError(
            "pipeline_schedule='1f1b' sends each microbatch through the stages once, but "
            f"pipeline_rounds={rounds}.\n  Leave out pipeline_rounds; or use pipeline_schedule='gpipe', "
            "which idles less with rounds, and keeps more."
        )


@dataclass(frozen=True)
class OneForwardOneBackward:
    r"""The schedule of 1F1B: a stage goes back through one microbatch for each that it goes forward through.

    Example:
      >>> schedule = mw.training.OneForwardOneBackward(stages=2, microbatches=4)
      >>> schedule.ticks, round(schedule.idle_share, 2), schedule.in_flight
      (5, 0.2, 4)
      >>> print("\n".join(schedule.drawn()))
       0  1  2  3  .  .  0' 1' 2' 3'
       .  0  1  2  0' 3  1' 2' 3' .
    """

    stages: int
    """The number of devices along the axis."""
    microbatches: int

    @property
    def groups(self) -> int:
        """The number of groups of as many microbatches as there are stages; the last may have fewer."""
        return -(-self.microbatches // self.stages)

    @property
    def places(self) -> int:
        """The number of microbatches, rounded up to a multiple of the stages."""
        return self.groups * self.stages

    @property
    def ticks(self) -> int:
        """The number of ticks in which stages go forward. They go back in as many."""
        return self.places + self.stages - 1

    @property
    def before_back(self) -> int:
        """The number of ticks before the first microbatch goes back."""
        return 2 * self.stages - 1

    @property
    def in_flight(self) -> int:
        """The largest number of microbatches of which a stage keeps its input."""
        return min(3 * self.stages - 1, self.places)

    @property
    def idle_share(self) -> float:
        """The share of the ticks in which a device has nothing to do."""
        return 1 - self.microbatches / self.ticks

    def drawn(self, ticks: int = 24) -> list[str]:
        """Return a line for each stage, with the microbatch that it computes at each tick, or a dot.

        A microbatch that goes back has an apostrophe. A tick in which stages go forward and back is drawn as
        two.

        Args:
          ticks: The number of ticks to draw; of a longer schedule these are the first.
        """
        width = len(str(self.microbatches - 1))
        lines = []
        for stage in range(self.stages):
            cells = []
            for tick in range(self.ticks + self.before_back):
                back = tick - self.before_back
                if tick < self.ticks:
                    cells.append(self._cell(tick - stage, " ", width))
                if back >= 0:
                    cells.append(self._cell(back - (self.stages - 1 - stage), "'", width))
            line = " ".join(cells[:ticks]).rstrip()
            lines.append(f" {line}" + (" …" if len(cells) > ticks else ""))
        return lines

    def _cell(self, microbatch: int, mark: str, width: int) -> str:
        works = 0 <= microbatch < self.microbatches
        return f"{microbatch:>{width}}{mark}" if works else f"{'.':>{width}} "
