"""How a run goes, whatever it trains: plain values, which no device is needed for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from meshwright.arrays import Casts
from meshwright.checkpoint import HOST_NBYTES, Keep
from meshwright.engine._policies import Policy
from meshwright.engine._stopping import Stop
from meshwright.engine._types import check_types
from meshwright.errors import UsageError
from meshwright.metrics import Tracker


@dataclass(frozen=True)
class Saving:
    """Checkpoints: when they are made, where, in what form, and which are kept."""

    when: Policy
    """After these steps (a number: every so many), and always after the last."""
    keep: int | Keep
    directory: str | None = None
    """None stands for the folder `checkpoints` in the run directory."""
    cast: Casts = ()
    names: Callable[[str], str | None] | None = None
    host_nbytes: int = HOST_NBYTES
    keeps_position: bool = True
    """Whether the position in the data is saved, too."""
    is_tried: bool = False
    """Whether a new run saves its first state, to show that it can."""
    marks: Callable[[], Mapping[str, float]] = dict
    """Returns numbers that are saved among the scores of a checkpoint."""
    field: str = "checkpoints"
    """The setting that errors name."""
    keep_field: str = "checkpoints.keep"
    """The setting that errors about `keep` name."""


@dataclass(frozen=True)
class Reporting:
    """Reports: how often they are made, and where they go besides the run directory and the screen."""

    every: int
    """Steps between reports."""
    per_second: Mapping[str, float]
    """Amounts of a step of which reports give the rate: `{"examples": 64}`."""
    trackers: Sequence[Tracker] = ()
    learning_rate: Callable[[int], float] | None = None
    """The learning rate of the update after so many updates."""


@dataclass(frozen=True)
class Profile:
    """The steps of which profiles are taken."""

    steps: tuple[int, ...] = ()
    """Steps at which a profile begins."""
    num_steps: int = 3
    """How many steps a profile covers."""
    processes: tuple[int, ...] | Literal["all"] = (0,)
    """The processes that take profiles."""

    def __post_init__(self) -> None:
        check_types(self)
        if any(step < 1 for step in (*self.steps, self.num_steps)):
            raise UsageError(f"{self}: steps count from 1, and a profile covers at least one.")


@dataclass(frozen=True)
class Watchdog:
    """How long a phase may take, in seconds, and whether a process that hangs is ended."""

    timeout_seconds: float | Mapping[str, float]
    kill: bool = False

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True)
class Settings:
    """All of them."""

    place: str | None
    """The run directory or its address; None for a run that leaves no files."""
    described: Callable[[], str]
    """Returns the text of `experiment.txt`: all settings, one a line."""
    saving: Saving | None
    reporting: Reporting
    stop: Stop = field(default_factory=Stop)
    profile: Profile = field(default_factory=Profile)
    watchdog: Watchdog | None = None
    compile_cache: bool = True
    """Whether compiled programs are kept in the run directory."""
    is_strict: bool = False
    """Whether a run that is continued with other settings than before is refused."""
    origin: Mapping[str, Any] | None = None
    """How the run is started again; None if only its script knows."""
    remark: str = ""
    """What the first line on the screen says besides versions, devices and mesh."""
    is_shown: bool = True
    """Whether process 0 shows progress on its screen."""
    is_verbose: bool = False
    """Whether the screen shows the details, too: each array, each evaluation that was checked."""
    say: Callable[[str], None] | None = None
    """Tells people a line; None for the screen and the log of the run."""
    detail: Callable[[str], None] | None = None
    """Tells a detail; None for the log of the run and, if verbose, the screen."""
