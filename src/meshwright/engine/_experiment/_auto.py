"""`remat="auto"` and `microbatches="auto"`: settings that a run chooses once it knows its devices.

A `Planner` chooses. The package `plan`, which plans experiments and so is above this one, passes it in.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jax.sharding import Mesh

from meshwright.base._internal import PyTree, description, join, read_text
from meshwright.engine._directory import compiled_programs
from meshwright.engine._experiment._experiment import AUTO, Experiment
from meshwright.engine._experiment._parts import Parts, parts_of
from meshwright.errors import InputError, UsageError
from meshwright.processes import _internal as processes

_BEFORE: dict[str, Any] = {"remat": None, "microbatches": 1}
"""Values that a choice starts from."""


class Planner(NamedTuple):
    """Functions that plan an experiment."""

    choose: Callable[..., tuple[Experiment, Parts, str]]
    """A function of an experiment, the names of its fields to choose, a function that makes the parts of an
    experiment, rows of a batch, and the choice of an attempt before. It returns the experiment with its
    choice, the parts, and the reason."""
    remedies: Callable[[Experiment], str]
    """A function that says in words what would need less memory."""


class Settled(NamedTuple):
    """An experiment without `"auto"`, and its parts."""

    experiment: Experiment
    parts: Parts
    told: Sequence[str] = ()
    """A line about what was chosen."""


def automatic(experiment: Experiment) -> list[str]:
    """Return the names of the fields that a run chooses."""
    return [name for name in _BEFORE if getattr(experiment, name) == AUTO]


def before_choice(experiment: Experiment) -> Experiment:
    """Return the experiment with the simplest values of the fields that a run chooses."""
    return replace(experiment, **{name: _BEFORE[name] for name in automatic(experiment)})


def as_chosen(experiment: Experiment) -> Experiment:
    """Return the experiment with what an attempt before chose; without any, with the simplest values."""
    names = automatic(experiment)
    return replace(before_choice(experiment), **_known(experiment, names)) if names else experiment


def settled(
    experiment: Experiment,
    mesh: Mesh,
    rows: PyTree,
    planner: Planner | None,
    other_rows: Sequence[PyTree] = (),
    *,
    kept: bool = True,
) -> Settled:
    """Return the experiment with what a run chooses, and its parts. If there was a choice, they are compiled.

    Collective. What an attempt before chose is taken again if it still fits.
    """
    names = automatic(experiment)
    if not names:
        return Settled(experiment, parts_of(experiment, mesh, rows, other_rows))
    if planner is None:
        raise UsageError(
            f"{' and '.join(names)}='auto' needs a planner, and this run has none.\n"
            "  Start the experiment by `mw.run`, or give values."
        )
    known = processes.agree(_known(experiment, names) if kept and processes.is_lead() else {})
    with compiled_programs(experiment.compile.cache):
        found, parts, why = planner.choose(
            before_choice(experiment), names, lambda made: parts_of(made, mesh, rows, other_rows), rows, known
        )
    values = ", ".join(f"{name}={getattr(found, name)!r}" for name in names)
    return Settled(found, parts, [f"chosen: {values} ({why})"])


def _known(experiment: Experiment, names: Sequence[str]) -> dict[str, Any]:
    """Return what the description of an attempt before says; nothing if there is none."""
    try:
        text = read_text(join(experiment.workdir, "experiment.txt"))
    except (OSError, InputError):
        return {}
    values = description.values(text)
    try:
        found = {name: ast.literal_eval(values[name]) for name in names}
    except (KeyError, ValueError, SyntaxError):
        return {}
    return {} if AUTO in found.values() else found
