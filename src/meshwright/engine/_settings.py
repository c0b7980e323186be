"""The settings of a run, whatever it trains: plain values that need no device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from meshwright.base._internal import documented, explained
from meshwright.checkpoints._internal import HOST_NBYTES, Casts, InMemory, Keep
from meshwright.engine._policies import InformedWhen, is_informed
from meshwright.engine._spikes import Spikes
from meshwright.engine._stopping import Stop
from meshwright.engine._types import check_least, check_types
from meshwright.errors import UsageError, listed
from meshwright.observe._internal import Tracker, is_writer
from meshwright.processes._internal import When
from meshwright.training._internal import PHASES, CompilerOptions, timeouts


@explained
@documented
@dataclass(frozen=True)
class Save:
    """The checkpoints of a run: when and where they are saved, in which form, and which are kept.

    Example:
      >>> mw.Save(when=1000, keep=3).keep
      3
    """

    is_known_by_place: ClassVar[bool] = True

    when: int | When | InformedWhen | None = None
    """The steps after which to save. A number means each time after so many steps. None means every 500
    steps, and in `Trainer.fit` the end of each epoch. The last step is always saved. A function may take the
    step, or the step and the scores of this step, such as `mw.engine.when_evaluated("test", "dev")`."""
    keep: int | Keep = 2
    """The checkpoints to keep: a number of the newest, or a policy such as `mw.checkpoints.best`."""
    directory: str | None = None
    """The directory of the checkpoints, or a URL such as `s3://bucket/run`. None means the folder
    `checkpoints` in the run directory. Each run needs a directory of its own."""
    cast: str | Sequence[tuple[str, Any]] = ()
    """The dtypes to save in: pairs of a pattern and a dtype, of which the first that matches decides. A
    single dtype is for the parameters. A run that continues casts back."""
    names: Callable[[str], str | None] | None = None
    """A function from the name of a leaf of the state to its name in checkpoints, or to None, which leaves it
    out. A run that continues restores the names. Leaves that were left out come from `init_state_builder`, or
    are initialised. None saves all leaves with their own names."""
    data_position: bool = True
    """If true, the position in the data is saved, and a run continues there. Otherwise a continued run starts
    the data from the beginning."""
    host_nbytes: int = HOST_NBYTES
    """The largest number of bytes of copies on the host that each process holds before they are written."""
    memory: InMemory | None = None
    """Further checkpoints, more often, in the memory of each host, such as
    `mw.checkpoints.InMemory(every=10)`. A run that starts again continues from the newest of both kinds. They
    are removed when the run ends well."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(1, self, "when", "keep", "host_nbytes")
        is_informed(self.when)  # raises if it is not a policy
        if self.directory == "":
            raise UsageError("Save.directory is empty; None means the folder `checkpoints` in the workdir.")


def as_casts(cast: str | Casts) -> Casts:
    """Return pairs of a pattern and a dtype. A single dtype is for the parameters."""
    return [("^params/.*", cast)] if isinstance(cast, str) else cast


@explained
@documented
@dataclass(frozen=True)
class Logging:
    """The interval of a run's reports, and where they go besides the screen and the run directory.

    Trackers are given as functions: `functools.partial(mw.observe.wandb, project="digits")`.

    Raises:
      UsageError: A value has the wrong type, `every` is below 1, or a tracker is not a writer.

    Example:
      >>> mw.Logging(every=10, norms="head/.*")
      Logging(every=10, norms='head/.*', trackers=(), machine_seconds=10.0)
    """

    is_known_by_place: ClassVar[bool] = True

    every: int = 50
    """The number of steps between reports."""
    norms: str | None = None
    """A pattern for names of parameters; ".*" matches all. Reports contain the norms of the parameters that
    it matches, and of their gradients."""
    trackers: tuple[Tracker, ...] = ()
    """Functions `(step, values)`, or functions that open one. Only process 0 calls them. The loop waits for
    them, unless they are wrapped in `mw.observe.behind`. If one raises an error, the run warns and does not
    call it again."""
    machine_seconds: float | None = 10.0
    """The seconds between two readings of the machines and devices, which a thread makes: memory, use,
    temperature, clocks, errors and traffic. Reports contain them as `machine/...`. None reads nothing."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.machine_seconds is not None and self.machine_seconds <= 0:
            raise UsageError(
                f"Logging.machine_seconds is {self.machine_seconds}; it must be above 0, or None."
            )
        if self.every < 1:
            raise UsageError(f"Logging.every is {self.every}; it must be at least 1.")
        for tracker in self.trackers:
            is_writer(tracker)  # raises if it is not a writer


@documented
@dataclass(frozen=True)
class Profile:
    """The steps that are profiled. Profiles are written to the run directory, where TensorBoard finds them.

    Raises:
      UsageError: A value has the wrong type, or a number is below 1.

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
                f"Profile.steps is {self.steps} and num_steps is {self.num_steps}; steps count from 1, and a "
                "profile covers at least one step."
            )


@documented
@dataclass(frozen=True)
class Compile:
    """Options of the XLA compiler for the training step, and the folder that keeps compiled programs.

    Raises:
      UsageError: A value has the wrong type. Before the run starts: the compiler refuses an option.

    Example:
      >>> mw.Compile(options={"xla_gpu_enable_triton_gemm": False}).cache
      True
    """

    is_known_by_place: ClassVar[bool] = True

    options: CompilerOptions = field(default_factory=dict)
    """XLA's options by name, without dashes. They have precedence over those of `XLA_FLAGS`. Set options for
    one kind of device with `mesh_rules`."""
    cache: bool | str = True
    """The folder that keeps compiled programs, so that a run that continues, and any other run of the same
    program, need not compile again. True means `meshwright/compile_cache` below `$XDG_CACHE_HOME` or
    `~/.cache` or, if JAX already has a cache, as set by `JAX_COMPILATION_CACHE_DIR`, that one. False keeps no
    programs."""
    late: Literal["tell", "refuse"] = "tell"
    """What happens if a batch comes in the middle of a run for whose shape the step is not compiled: it is
    compiled, and the log tells how long that took and what differs ("tell"), or the run ends ("refuse"). With
    several processes the run always ends."""

    def __post_init__(self) -> None:
        check_types(self)


@documented
@dataclass(frozen=True)
class Watchdog:
    """The time after which a run counts as hung, and whether a process that hangs is ended.

    Raises:
      UsageError: A time is not positive, the time of a step is missing, or a phase is unknown.

    Example:
      >>> mw.Watchdog({"step": 60, "compile": 1800, "save": 600}, kill=True).kill
      True
    """

    is_known_by_place: ClassVar[bool] = True

    timeout_seconds: float | Mapping[str, float] = 3600.0
    """If no step ends for this number of seconds, every process prints the stacks of its threads. Other
    phases may take ten times as long. A dictionary gives the seconds of each phase in
    `mw.training.PHASES`."""
    kill: bool = False
    """True to end a process that hangs for two such times in a row, with exit code 5."""
    learned: Literal["warn", "end", "ignore"] = "warn"
    """What happens if a process stands still for five times as long as it ever did in that phase, and for
    `shortest_seconds` at least: all processes say where each stands, and go on ("warn") or, if they stand
    still for as long again, end with exit code 5 ("end"). With "ignore" the run learns nothing and tells
    nobody."""
    shortest_seconds: float = 30.0
    """The shortest time that is taken for a hang by what the run has learned."""
    first_seconds: float = 1800.0
    """The same for what happens for the first time, of which the run has learned nothing yet: the first 20
    steps, compiling, restoring, the first batch of an evaluation, the first save, the end. `math.inf` tells
    nobody."""

    def __post_init__(self) -> None:
        check_types(self)
        unknown = timeouts(self.timeout_seconds).keys() - set(PHASES)
        if unknown:
            raise UsageError(
                f"Watchdog.timeout_seconds: there is no phase {listed(sorted(unknown))}. The phases are "
                f"{listed(PHASES, len(PHASES))}."
            )


@dataclass(frozen=True)
class Settings:
    """All settings of a run."""

    place: str | None
    """The run directory or its URL; None for a run that writes no files."""
    described: Callable[[], str]
    """Returns the text of `experiment.txt`, which has a line for each setting."""
    save: Save | None
    """The settings of checkpoints; None for a run that saves none."""
    logging: Logging
    """The settings of reports."""
    per_second: Mapping[str, float]
    """Amounts per step, such as `{"examples": 64}`. Reports give their rates per second."""
    learning_rate: Callable[[int], float] | None = None
    """Returns the learning rate of the update after a number of updates, for an optimizer that does not show
    it."""
    marks: Callable[[], Mapping[str, float]] = dict
    """Returns further numbers that are saved among the scores of a checkpoint."""
    tries_saving: bool = False
    """True to save the first state of a new run, which shows that saving works."""
    stop: Stop = field(default_factory=Stop)
    """The reasons to end the run before its last step."""
    spikes: Spikes | None = None
    """The rule of loss spikes; None for a run that goes on after them."""
    profile: Profile = field(default_factory=Profile)
    """The steps that are profiled."""
    watchdog: Watchdog | None = None
    """The settings of the watchdog; None for a run without one."""
    compile: Compile = field(default_factory=Compile)
    """The options of the compiler, and the folder that keeps compiled programs."""
    is_strict: bool = False
    """True to refuse to continue a run with different settings."""
    from_step: int | None = None
    """The step whose checkpoint the run goes back to; later checkpoints are set aside. None continues from
    the newest checkpoint."""
    started: float | None = None
    """The time when the user started the run, on the clock `time.monotonic`; None means the time of the
    call."""
    origin: Mapping[str, Any] | None = None
    """JSON that says how to start the run again; None if only the user's script knows."""
    remedies: Callable[[], str] = lambda: ""
    """Returns what would make the step need less memory; it is called when the memory was not enough."""
    remark: str = ""
    """Text that is added to the line of devices and mesh on the screen."""
    is_shown: bool = True
    """True to show progress on the screen of process 0."""
    is_verbose: bool = False
    """True to show details on the screen, too, such as each array and each checked evaluation."""
    say: Callable[[str], None] | None = None
    """Shows a line to the user; None means on the screen and in the log of the run."""
    detail: Callable[[str], None] | None = None
    """Shows a detail; None means in the log of the run and, if `is_verbose`, on the screen."""
