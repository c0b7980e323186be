"""Settings of a run, whatever it trains: plain values that need no device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from meshwright.arrays import Casts
from meshwright.checkpoint import HOST_NBYTES, Keep
from meshwright.docstrings import documented
from meshwright.engine._policies import Policy
from meshwright.engine._stopping import Stop
from meshwright.engine._types import check_types
from meshwright.errors import UsageError, listed
from meshwright.metrics import Tracker, is_writer
from meshwright.train import PHASES, CompilerOptions, timeouts


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
    """Save the position in the data, too."""
    is_tried: bool = False
    """Save the first state of a new run, to show that saving works."""
    marks: Callable[[], Mapping[str, float]] = dict
    """Returns numbers that are saved among the scores of a checkpoint."""
    field: str = "save"
    """The setting that errors name."""
    keep_field: str = "save.keep"
    """The setting that errors about `keep` name."""


@documented
@dataclass(frozen=True)
class Logging:
    """The interval of a run's reports, and where they go besides the screen and the run directory.

    Trackers are given as functions: `functools.partial(mw.metrics.wandb, project="digits")`.

    Raises:
      UsageError: a value is of another type, `every` is below 1, or a tracker is nothing to write to.

    Example:
      >>> mw.Logging(every=10, norms="head/.*")
      Logging(every=10, norms='head/.*', trackers=())
    """

    is_known_by_place: ClassVar[bool] = True

    every: int = 50
    """Steps between reports."""
    norms: str | None = None
    """A pattern: reports have the norms of the parameters that it matches and of their gradients; ".*" for
    all."""
    trackers: tuple[Tracker, ...] = ()
    """Functions `(step, values)`, or what opens one. Process 0 alone calls them, and the loop waits for them,
    unless they are `mw.metrics.behind` it. One that fails is told of, and put aside."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.every < 1:
            raise UsageError(f"Logging.every is {self.every}; it must be at least 1.")
        for tracker in self.trackers:
            is_writer(tracker)  # raises if it is nothing that can be written to


@dataclass(frozen=True)
class Reporting:
    """Reports: how often they are made, and where they go besides the run directory and the screen."""

    every: int
    """Steps between reports."""
    per_second: Mapping[str, float]
    """Amounts of a step of which reports give the rate: `{"examples": 64}`."""
    trackers: Sequence[Tracker] = ()
    learning_rate: Callable[[int], float] | None = None
    """The learning rate of the update after so many updates, for an optimizer that does not show it."""


@documented
@dataclass(frozen=True)
class Profile:
    """The steps that are profiled, into the run directory, where TensorBoard finds the profiles.

    Raises:
      UsageError: a value is of another type, or a number is below 1.

    Example:
      >>> mw.Profile((100, 5000), num_steps=3)
      Profile(steps=(100, 5000), num_steps=3, processes=(0,))
    """

    is_known_by_place: ClassVar[bool] = True

    steps: tuple[int, ...] = ()
    """The first step of each profile; steps count from 1."""
    num_steps: int = 3
    """The number of steps in a profile."""
    processes: tuple[int, ...] | Literal["all"] = (0,)
    """The processes that take profiles."""

    def __post_init__(self) -> None:
        check_types(self)
        if any(step < 1 for step in (*self.steps, self.num_steps)):
            raise UsageError(
                f"Profile.steps is {self.steps}, num_steps {self.num_steps}: steps count from 1, and a "
                "profile covers at least one."
            )


@documented
@dataclass(frozen=True)
class Compile:
    """Options of the XLA compiler for the training step, and the folder that keeps compiled programs.

    Raises:
      UsageError: a value is of another type. When the step is compiled: the compiler refuses an option.

    Example:
      >>> mw.Compile(options={"xla_gpu_enable_triton_gemm": False}).cache
      True
    """

    is_known_by_place: ClassVar[bool] = True

    options: CompilerOptions = field(default_factory=dict)
    """XLA's options by name, without dashes. They have precedence over those of `XLA_FLAGS`. Options for one
    kind of device are best set by `mesh_rules`."""
    cache: bool | str = True
    """Where compiled programs are kept, so that a run that continues, and any other run of the same program,
    need not compile. True is a folder of the user, see `mw.train.user_compile_cache`; a path is another
    folder; False keeps none. Where JAX has a cache already, as by `JAX_COMPILATION_CACHE_DIR`, True uses
    that one."""

    def __post_init__(self) -> None:
        check_types(self)


@documented
@dataclass(frozen=True)
class Watchdog:
    """When a run counts as hung, and whether a process that hangs is ended.

    Raises:
      UsageError: a time is not positive, there is none for a step, or a phase is unknown.

    Example:
      >>> mw.Watchdog({"step": 60, "compile": 1800, "save": 600}, kill=True).kill
      True
    """

    is_known_by_place: ClassVar[bool] = True

    timeout_seconds: float | Mapping[str, float] = 3600.0
    """When no step ends for so many seconds, every process prints the stacks of its threads. Other phases may
    take ten times as long. Or the seconds by phase, of `mw.train.PHASES`."""
    kill: bool = False
    """End a process, with exit code 5, that hangs for two such times in a row."""

    def __post_init__(self) -> None:
        check_types(self)
        unknown = timeouts(self.timeout_seconds).keys() - set(PHASES)
        if unknown:
            raise UsageError(
                f"Watchdog.timeout_seconds: there is no phase {listed(sorted(unknown))}. There are "
                f"{listed(PHASES, len(PHASES))}."
            )


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
    compile: Compile = field(default_factory=Compile)
    is_strict: bool = False
    """Refuse to continue a run with other settings than before."""
    from_step: int | None = None
    """The step whose checkpoint the run goes back to; later ones are set aside."""
    started: float | None = None
    """When the run was asked for, on the clock `time.monotonic`; None for the call."""
    origin: Mapping[str, Any] | None = None
    """JSON that tells how to start the run again; None if only its script knows."""
    remark: str = ""
    """Text of the first line on the screen, besides versions, devices and mesh."""
    is_shown: bool = True
    """Show progress on the screen of process 0."""
    is_verbose: bool = False
    """Show details on the screen, too: each array, each evaluation that was checked."""
    say: Callable[[str], None] | None = None
    """Tells people a line; None for the screen and the log of the run."""
    detail: Callable[[str], None] | None = None
    """Tells a detail; None for the log of the run and, if verbose, the screen."""
