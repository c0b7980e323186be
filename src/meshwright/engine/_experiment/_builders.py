"""Builders: functions that take arrays of a run's first state from a checkpoint."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import jax

from meshwright.base._internal import Table, judge, tree
from meshwright.checkpoints._internal import (
    Assign,
    Casts,
    Source,
    cast,
    find_step,
    open_source,
    origins,
    restore,
)
from meshwright.engine._experiment._adapt import Adapt
from meshwright.errors import CheckpointError, UsageError
from meshwright.training._internal import Builder, InitialArrays, TrainState

_sources: ContextVar[list[str] | None] = ContextVar("sources", default=None)


@contextlib.contextmanager
def noted_sources() -> Iterator[list[str]]:
    """Yield a list to which builders add the sources that they read, while the context is open.

    A builder returns only arrays, and a user's own builder may call others.
    """
    found: list[str] = []
    token = _sources.set(found)
    try:
        yield found
    finally:
        _sources.reset(token)


def from_checkpoint(
    path: str,
    only: str = "^params/.*",
    *,
    step: int | None = None,
    assign: Assign = (),
    casts: Casts = (),
    adapt: Sequence[tuple[str, Adapt]] = (),
    open_with: Callable[[str], Source] = open_source,
) -> Builder:
    r"""Return a builder that takes arrays from a checkpoint. Each process reads what its devices need.

    Args:
      path: The path or URL of a checkpoint, or of a directory of checkpoints. In a directory the newest is
        taken.
      only: A pattern for the names of the arrays to take; see `meshwright.base._patterns`.
        `^params/(?!head/).*` leaves the head as it is initialised. `.*` takes all arrays, the step and the
        optimizer's state too.
      step: The step of the checkpoint in a directory. None stands for the newest.
      assign: Pairs of a name and the name in the checkpoint, as `mw.restore` takes them. For a model that
        becomes a part of another one: `[(r"params/encoder/(.*)", r"params/\1")]`. One saved array may be
        assigned to several.
      casts: Pairs of a pattern and a dtype, as `mw.checkpoints.cast` takes them.
      adapt: For arrays of other shapes, pairs of a pattern for names and a function of the saved array and
        the wanted struct, such as `[("position", mw.engine.truncate())]`. The first pattern that matches
        decides. Such arrays are read whole, on the host.
      open_with: A function that opens the path and returns a source, such as `mw.engine.open_averages`.

    Raises:
      UsageError: A pattern is not a regular expression, or the path is already that of one step. When the
        builder is called: a pattern matches no name.
      CheckpointError: When the builder is called: there is no checkpoint, or it lacks wanted arrays. All
        differences are listed.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> optimizer = optax.sgd(0.1)
      >>> state = mw.training.init_state(lambda key: {"w": jnp.ones(2)}, optimizer, 0, layout)
      >>> with mw.Checkpoints("pretrained") as checkpoints:
      ...     checkpoints.save(1, state)
      >>> given = mw.engine.from_checkpoint("pretrained")(state)
      >>> print(given["params/w"])
      [1. 1.]
    """
    chosen, adapting = Table("only", (only,)), Table.of("adapt", adapt)
    if step is not None and re.fullmatch(r"step_\d+", PurePosixPath(path).name):
        raise UsageError(f"from_checkpoint({path!r}, step={step}): the path says which step; leave one out.")

    def build(target: TrainState) -> InitialArrays:
        leaves = tree.named_leaves(target)
        judge({chosen: leaves})
        wanted = {name: x for name, x in leaves.items() if chosen.first(name)}
        judge({adapting: wanted})
        source = cast(open_with(path if step is None else str(find_step(path, step))), casts)
        adapts = {name: adapt[number][1] for name, (number, _) in adapting.decisions(wanted).items()}
        as_found = wanted | _as_saved(source, wanted, assign, adapts)
        found = tree.named_leaves(restore(source, tree.nested(as_found), assign=assign, ignore=".*"))
        given = found | _adapted(adapts, found, wanted, source)
        if (sources := _sources.get()) is not None:
            sources.append(f"{source} ({len(given)} of {len(leaves)} arrays)")
        return given

    return build


def chain(*builders: Builder) -> Builder:
    """Return a builder that joins the arrays of several builders. Of equal names the last builder's is taken.

    Args:
      builders: Builders, such as `from_checkpoint` returns.

    Example:
      >>> first, second = lambda target: {"params/w": 1, "params/b": 2}, lambda target: {"params/b": 3}
      >>> mw.engine.chain(first, second)(None)
      {'params/w': 1, 'params/b': 3}
    """
    return Chain(builders)


@dataclass(frozen=True)
class Chain:
    """The builder that `chain` makes."""

    builders: tuple[Builder, ...]

    def __call__(self, target: TrainState) -> InitialArrays:
        return {name: x for build in self.builders for name, x in build(target).items()}


def _as_saved(
    source: Source, wanted: Mapping[str, jax.ShapeDtypeStruct], assign: Assign, names: Iterable[str]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return structs of the saved shapes, by name. They have no sharding, so the arrays go to the host."""
    saved, from_where = source.arrays(), origins(source, wanted, assign)
    pairs = ((name, saved.get(from_where[name] or "")) for name in names)
    return {name: jax.ShapeDtypeStruct(x.shape, wanted[name].dtype) for name, x in pairs if x is not None}


def _adapted(
    adapts: Mapping[str, Adapt],
    found: Mapping[str, Any],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    source: Source,
) -> dict[str, Any]:
    """Return the arrays of other shapes, adapted."""
    adapted, problems = {}, []
    for name, adapt in adapts.items():
        try:
            adapted[name] = adapt(found[name], wanted[name])
        except CheckpointError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise CheckpointError(f"{source} does not fit the target:\n  " + "\n  ".join(problems))
    return adapted
