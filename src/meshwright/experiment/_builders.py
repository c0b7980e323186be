"""Builders of a run's first state from other sources than its seed."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import jax

from meshwright import tree
from meshwright.arrays import Assign, Casts, Source, cast, origins, restore
from meshwright.errors import CheckpointError, UsageError
from meshwright.experiment._adapt import Adapt
from meshwright.formats import find_step, open_source
from meshwright.patterns import Table, judge
from meshwright.train import Builder, Given, TrainState

_sources: ContextVar[list[str] | None] = ContextVar("sources", default=None)


@contextlib.contextmanager
def noted_sources() -> Iterator[list[str]]:
    """Give a list to which builders add what they read, until the context is left.

    A builder returns arrays alone, and one of the user's own may call others.
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
    r"""Return a builder that takes arrays from a checkpoint, each process what its own devices need.

    Args:
      path: a checkpoint, or a directory of them, of which the newest is taken; or an address.
      only: a pattern for the names of what to take, see `meshwright.patterns`: `^params/(?!head/).*` leaves
        the head as it is initialised, `.*` takes all, step and optimizer state too.
      step: of a directory of checkpoints that of this step, not the newest, whatever wrote them.
      assign: other names for what is wanted, as `mw.restore` takes them: of a model that becomes a part of
        another, `[(r"params/encoder/(.*)", r"params/\1")]`. One saved array may be assigned to many.
      casts: other dtypes, as `mw.arrays.cast` takes them.
      adapt: for arrays of other shapes, pairs of a pattern for names and a function of the saved array
        and the struct that is wanted, `[("position", experiment.truncate())]`; the first that matches
        decides. These are read whole, onto the host.
      open_with: what opens the path: `mw.experiment.open_averages`, or anything that returns a source.

    Raises:
      UsageError: a pattern is no regular expression, or the path is of one step and `step` is given, too;
        when called, a pattern decides nothing.
      CheckpointError (when called): there is no checkpoint, or it does not have what is wanted; all
        differences are listed.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> optimizer = optax.sgd(0.1)
      >>> state = mw.train.init_state(lambda key: {"w": jnp.ones(2)}, optimizer, 0, layout)
      >>> with mw.Checkpoints("pretrained") as checkpoints:
      ...     checkpoints.save(1, state)
      >>> given = mw.from_checkpoint("pretrained")(state)
      >>> print(given["params/w"])
      [1. 1.]
    """
    chosen, adapting = Table("only", (only,)), Table.of("adapt", adapt)
    if step is not None and re.fullmatch(r"step_\d+", PurePosixPath(path).name):
        raise UsageError(f"from_checkpoint({path!r}, step={step}): the path says which step; leave one out.")

    def build(target: TrainState) -> Given:
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
    """Return a builder that takes what any of `builders` gives; of what several give, the last one's."""
    return Chain(builders)


@dataclass(frozen=True)
class Chain:
    """The builder that `chain` makes."""

    builders: tuple[Builder, ...]

    def __call__(self, target: TrainState) -> Given:
        return {name: x for build in self.builders for name, x in build(target).items()}


def _as_saved(
    source: Source, wanted: Mapping[str, jax.ShapeDtypeStruct], assign: Assign, names: Iterable[str]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return structs of the shapes that `source` has for `names`; without shardings, so for the host."""
    saved, from_where = source.arrays(), origins(source, wanted, assign)
    pairs = ((name, saved.get(from_where[name] or "")) for name in names)
    return {name: jax.ShapeDtypeStruct(x.shape, wanted[name].dtype) for name, x in pairs if x is not None}


def _adapted(
    adapts: Mapping[str, Adapt],
    found: Mapping[str, Any],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    source: Source,
) -> dict[str, Any]:
    """Return what becomes of arrays of other shapes, or say of all of them what is wrong."""
    adapted, problems = {}, []
    for name, adapt in adapts.items():
        try:
            adapted[name] = adapt(found[name], wanted[name])
        except CheckpointError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise CheckpointError(f"{source} does not fit the target:\n  " + "\n  ".join(problems))
    return adapted
