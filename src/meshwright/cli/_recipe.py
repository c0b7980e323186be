"""What an experiment is made of, and how: the user's function, settings and devices."""

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from meshwright.cli._target import as_module, load
from meshwright.engine import _internal as engine
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes


class Recipe(NamedTuple):
    """What an experiment is made of."""

    target: str
    """The function, as `module:function`."""
    settings: Mapping[str, str]
    """The texts of the settings, by dotted path."""
    fake_devices: int | None
    """The number of virtual CPU devices in each process; None or 0 for the machine's own devices."""
    flags: Sequence[str]
    """The options of the command: an unknown setting may be a slip of one."""
    check: Callable[[Callable[..., Any]], None] | None = None
    """Raises if the function must not be called."""


def recipe_of(options: argparse.Namespace) -> Recipe:
    """Return what the command line itself says."""
    return Recipe(as_module(options.target), options.settings, options.fake_devices, options.flags)


def load_experiment(recipe: Recipe) -> tuple[Callable[..., Any], Any]:
    """Join the processes, and return the function and the experiment that it returns."""
    use_fake_devices(recipe.fake_devices)
    processes.start_processes()
    with processes.collective(), processes.broadcasting_errors():
        function = load(recipe.target)
        if recipe.check is not None:
            recipe.check(function)
        return function, _build(function, recipe.settings, recipe.flags)


def load_locally(target: str, settings: Mapping[str, str], flags: Sequence[str] = ()) -> Any:
    """Return the experiment, without joining the other processes."""
    return _build(load(target), settings, flags)


def _build(function: Callable[..., Any], settings: Mapping[str, str], flags: Sequence[str]) -> Any:
    from meshwright.cli import _overrides  # loads `dataclasses`, for which help would wait 10 ms

    return _overrides.build(function, settings, engine.Experiment, flags)


def origin_of(function: Callable[..., Any], recipe: Recipe) -> dict[str, Any]:
    """Return what a run stores of its recipe, to be opened again."""
    from meshwright.cli import _overrides

    return {
        "target": recipe.target,
        "settings": _overrides.with_secrets(function, recipe.settings),
        "defaults": _overrides.defaults_of(function, recipe.settings),
        "fake_devices": recipe.fake_devices,
    }


def use_fake_devices(number: int | None) -> None:
    """Make JAX see `number` CPU devices, if any are asked for. Call this before JAX is first used."""
    if not number:
        return
    if number < 1:
        raise UsageError(f"--fake-devices {number}: expected a number of at least 1.")
    others = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{others} --xla_force_host_platform_device_count={number}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
