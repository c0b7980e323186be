"""The arguments of a call of `fit`, checked before anything is read or compiled."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.checkpoints._internal import InMemory
from meshwright.engine._settings import Logging, Profile, Watchdog
from meshwright.engine._stopping import EarlyStopping, Stop
from meshwright.engine._trainer._evaluation import PREFIX, Evaluated, full_name
from meshwright.engine._trainer._others import Others
from meshwright.engine._trainer._recipe import Recipe
from meshwright.engine._trainer._schedule import Schedule, batch_sizes
from meshwright.errors import UsageError, listed


@dataclass(frozen=True)
class Call:
    """The checked arguments of one call of `fit`."""

    examples: Any
    """The examples to train on."""
    batch_size: int
    """The number of examples in a step."""
    shuffle: bool
    """True to read each epoch in a new random order."""
    schedule: Schedule
    """The length of the call, and the times of its evaluations and checkpoints."""
    evaluated: Evaluated
    """The evaluation of the call."""
    others: Others
    """The evaluations besides it."""
    logging: Logging
    stop: Stop
    profile: Profile
    watchdog: Watchdog | None
    strict: bool
    from_step: int | None
    memory: InMemory | None

    @property
    def needs_workdir(self) -> bool:
        """True if the user asked for checkpoints, which need a directory."""
        return self.schedule.needs_workdir or self.memory is not None


def with_full_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `fit` in which each score has the one name that settings have for it."""
    best, stop = given["best"], given["stop"]
    if isinstance(best, Mapping):
        best = {name.removeprefix(PREFIX): mode for name, mode in best.items()}
    if isinstance(stop, Stop) and isinstance(early := stop.early, EarlyStopping):
        stop = replace(stop, early=replace(early, metric=full_name(early.metric, given["evaluations"])))
    return {**given, "best": best, "stop": stop}


def call_of(recipe: Recipe, given: Mapping[str, Any], *, has_directory: bool) -> Call:
    """Return the checked arguments of a call."""
    policies = "eval_when", "save_when", "keep_every_epochs", "best", "keep"
    schedule = Schedule(given["epochs"], given["max_steps"], *(given[name] for name in policies))
    values = {name: given[name] for name in ("logging", "stop", "profile", "watchdog", "memory", "strict")}
    _check_values(**values, has_directory=has_directory)
    ways = recipe.deployer.layout().batch_ways
    per_device, size = batch_sizes(
        given["per_device_batch_size"], given["batch_size"], ways * recipe.accumulate
    )
    eval_per_device = given["eval_per_device_batch_size"]
    _, eval_size = batch_sizes(per_device if eval_per_device is None else eval_per_device, None, ways)
    by = given["eval_loss"], given["eval_predictor"], given["eval_metric_fn"]
    is_evaluated = given["eval_examples"] is not None or given["evaluations"] or given["samples"]
    if given["eval_when"] is not None and not is_evaluated:
        raise UsageError("eval_when has no effect without eval_examples, evaluations or samples: give one.")
    call = Call(
        examples=given["train_examples"],
        batch_size=size,
        shuffle=given["shuffle"],
        schedule=schedule,
        evaluated=Evaluated(recipe, given["eval_examples"], eval_size, *by, prefix="eval_"),
        others=Others(given["evaluations"], given["samples"]),
        from_step=given["from_step"],
        **values,
    )
    if recipe.deployer.loops.is_in_round:
        _check_in_round(call)
    return call


def _check_values(
    logging: Any,
    stop: Any,
    profile: Any,
    watchdog: Any,
    memory: Any,
    *,
    strict: bool,
    has_directory: bool,
) -> None:
    """Check the arguments that are values of Meshwright's classes, and those that need a run directory."""
    given = {"logging": logging, "stop": stop, "profile": profile, "watchdog": watchdog, "memory": memory}
    kinds = {"logging": Logging, "stop": Stop, "profile": Profile, "watchdog": Watchdog, "memory": InMemory}
    for name, value in given.items():
        is_left_out = name in ("watchdog", "memory") and value is None
        if not isinstance(value, kinds[name]) and not is_left_out:
            raise UsageError(
                f"fit({name}={value!r}): it must be a mw.{kinds[name].__name__}, but has the type "
                f"{type(value).__name__}."
            )
    if profile.steps and not has_directory:
        raise UsageError("fit(profile=...) writes to the run directory: give Deployer(workdir=...).")
    if strict and not has_directory:
        raise UsageError(
            "fit(strict=True) compares with the settings in the run directory: give Deployer(workdir=...)."
        )


def _check_in_round(call: Call) -> None:
    """Check a call in a round."""
    asked = {
        "best, save_when, keep_every_epochs, keep and memory": call.needs_workdir,
        "strict": call.strict,
        "from_step": call.from_step is not None,
        "logging.trackers": bool(call.logging.trackers),
    }
    found = [names for names, is_asked in asked.items() if is_asked]
    if found:
        raise UsageError(
            f"in deployer.rounds(...) leave out {listed(found)}. The end of each round saves, a restarted "
            "program repeats the unfinished round, and Deployer(trackers=...) gives the trackers."
        )
