"""`remat="auto"` and `microbatches="auto"`: settings that a run chooses once it knows its devices.

A `Planner` chooses. The package `plan`, which plans experiments and so is above this one, passes it in.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from jax.sharding import Mesh

from meshwright.base._internal import PyTree, description, join, read_text
from meshwright.engine._directory import compiled_programs
from meshwright.engine._experiment._experiment import AUTO, Experiment
from meshwright.engine._experiment._parts import Parts, parts_of
from meshwright.errors import InputError, UsageError
from meshwright.processes import _internal as processes

_SIMPLEST: dict[str, Any] = {"remat": None, "microbatches": 1}
"""Values that a choice starts from."""


class Planner(NamedTuple):
    """Functions that plan an experiment."""

    choose: Callable[..., tuple[Experiment, Parts, str]]
    """A function of an experiment, the names of its fields to choose, a function that makes the parts of an
    experiment, rows of a batch, and the choice of an earlier attempt. It returns the experiment with its
    choice, the parts, and the reason."""
    remedies: Callable[[Experiment], str]
    """A function that names in words changes that need less memory."""


class Settled(NamedTuple):
    """An experiment without `"auto"`, and its parts."""

    experiment: Experiment
    parts: Parts
    notes: Sequence[str] = ()
    """A line about the choice."""


def automatic(experiment: Experiment) -> list[str]:
    """Return the names of the fields that a run chooses."""
    return [name for name in _SIMPLEST if getattr(experiment, name) == AUTO]


def before_choice(experiment: Experiment) -> Experiment:
    """Return the experiment with the simplest values of the fields that a run chooses."""
    return replace(experiment, **{name: _SIMPLEST[name] for name in automatic(experiment)})


def as_chosen(experiment: Experiment) -> Experiment:
    """Return the experiment with the choice of an earlier attempt; without any, with the simplest values."""
    names = automatic(experiment)
    return replace(before_choice(experiment), **_earlier_choice(experiment, names)) if names else experiment


def settled(
    experiment: Experiment,
    mesh: Mesh,
    rows: PyTree,
    planner: Planner | None,
    other_rows: Sequence[PyTree] = (),
    *,
    reuse: bool = True,
) -> Settled:
    """Return the experiment with the run's choice, and its parts. If there was a choice, they are compiled.

    Collective. With `reuse`, the choice of an earlier attempt is taken again if it still fits.
    """
    names = automatic(experiment)
    if not names:
        return Settled(experiment, parts_of(experiment, mesh, rows, other_rows))
    if planner is None:
        raise UsageError(
            f"{' and '.join(names)}='auto' needs a planner, and this run has none.\n"
            "  Start the experiment by `mw.run`, or give values."
        )
    earlier = processes.agree(_earlier_choice(experiment, names) if reuse and processes.is_lead() else {})
    make_parts = partial(parts_of, mesh=mesh, rows=rows, other_rows=other_rows)
    with compiled_programs(experiment.compile.cache):
        chosen, parts, reason = planner.choose(before_choice(experiment), names, make_parts, rows, earlier)
    values = ", ".join(f"{name}={getattr(chosen, name)!r}" for name in names)
    return Settled(chosen, parts, [f"chosen: {values} ({reason})"])


def _earlier_choice(experiment: Experiment, names: Sequence[str]) -> dict[str, Any]:
    """Return the values in the description of an earlier attempt; nothing if there is none."""
    try:
        values = description.values(read_text(join(experiment.workdir, "experiment.txt")))
        choice = {name: ast.literal_eval(values[name]) for name in names}
    except (OSError, InputError, KeyError, ValueError, SyntaxError):
        return {}
    return {} if AUTO in choice.values() else choice
