"""Builders, which take arrays of a run's first state from a checkpoint, and the changes that they make on the
way: other shapes (`truncate`, `replace_prefix`), and averages instead of parameters (`open_averages`).
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import Table, judge, tree
from meshwright.checkpoints._internal import (
    Assign,
    Casts,
    LazyArray,
    Source,
    as_source,
    cast,
    find_step,
    open_source,
    origins,
    restore,
)
from meshwright.errors import CheckpointError, UsageError
from meshwright.training._internal import Builder, InitialArrays, TrainState

Adapt = Callable[[np.ndarray, jax.ShapeDtypeStruct], Any]
"""A function of a saved array, which has the target's dtype, and of the target, a struct. It returns the
array to use, or a function of the initialised array that returns it."""

_sources: ContextVar[list[str] | None] = ContextVar("sources", default=None)


@contextlib.contextmanager
def noted_sources() -> Iterator[list[str]]:
    """Yield a list to which builders add the sources that they read, while the context is open.

    A builder returns only arrays, and a user's own builder may call others.
    """
    sources: list[str] = []
    token = _sources.set(sources)
    try:
        yield sources
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
        the target's struct, such as `[("position", mw.engine.truncate())]`. The first pattern that matches
        decides. Such arrays are read whole, on the host.
      open_with: A function that opens the path and returns a source, such as `mw.engine.open_averages`.

    Raises:
      UsageError: A pattern is not a regular expression, or the path is already that of one step. When the
        builder is called: a pattern matches no name.
      CheckpointError: When the builder is called: there is no checkpoint, or it lacks arrays of the
        target. All differences are listed.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> optimizer = optax.sgd(0.1)
      >>> state = mw.training.init_state(lambda key: {"w": jnp.ones(2)}, optimizer, 0, layout)
      >>> with mw.Checkpoints("pretrained") as checkpoints:
      ...     checkpoints.save(1, state)
      >>> arrays = mw.engine.from_checkpoint("pretrained")(state)
      >>> print(arrays["params/w"])
      [1. 1.]
    """
    chosen, adapting = Table("only", (only,)), Table.of("adapt", adapt)
    if step is not None and re.fullmatch(r"step_\d+", PurePosixPath(path).name):
        raise UsageError(f"from_checkpoint({path!r}, step={step}): the path says which step; leave one out.")

    def build(target: TrainState) -> InitialArrays:
        leaves = tree.named_leaves(target)
        judge({chosen: leaves})
        targets = {name: x for name, x in leaves.items() if chosen.first(name)}
        judge({adapting: targets})
        source = cast(open_with(path if step is None else str(find_step(path, step))), casts)
        adapts = {name: adapt[number][1] for name, (number, _) in adapting.decisions(targets).items()}
        structs = targets | _as_saved(source, targets, assign, adapts)
        restored = tree.named_leaves(restore(source, tree.nested(structs), assign=assign, ignore=".*"))
        arrays = restored | _adapted(adapts, restored, targets, source)
        if (sources := _sources.get()) is not None:
            sources.append(f"{source} ({len(arrays)} of {len(leaves)} arrays)")
        return arrays

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
    source: Source, targets: Mapping[str, jax.ShapeDtypeStruct], assign: Assign, names: Iterable[str]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return structs of the saved shapes, by name. They have no sharding, so the arrays go to the host."""
    saved, saved_names = source.arrays(), origins(source, targets, assign)
    pairs = ((name, saved.get(saved_names[name] or "")) for name in names)
    return {name: jax.ShapeDtypeStruct(x.shape, targets[name].dtype) for name, x in pairs if x is not None}


def _adapted(
    adapts: Mapping[str, Adapt],
    restored: Mapping[str, Any],
    targets: Mapping[str, jax.ShapeDtypeStruct],
    source: Source,
) -> dict[str, Any]:
    """Return the arrays of other shapes, adapted."""
    adapted, problems = {}, []
    for name, adapt in adapts.items():
        try:
            adapted[name] = adapt(restored[name], targets[name])
        except CheckpointError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise CheckpointError(f"{source} does not fit the target:\n  " + "\n  ".join(problems))
    return adapted


def truncate(dim: int = 0) -> Adapt:
    """Return a function that keeps the first rows of a dimension, as many as the target has.

    The function raises a `CheckpointError` if there are fewer rows, or if another dimension differs.

    Args:
      dim: The dimension.

    Example:
      >>> cut = mw.engine.truncate()
      >>> cut(np.arange(5), jax.ShapeDtypeStruct((3,), int)).tolist()
      [0, 1, 2]
    """
    return Truncate(dim, from_left=False)


def truncate_left(dim: int = 0) -> Adapt:
    """Return a function that keeps the last rows of a dimension, as many as the target has.

    It raises the errors of `truncate`.

    Args:
      dim: The dimension.

    Example:
      >>> mw.engine.truncate_left()(np.arange(5), jax.ShapeDtypeStruct((3,), int)).tolist()
      [2, 3, 4]
    """
    return Truncate(dim, from_left=True)


@dataclass(frozen=True)
class Truncate:
    """The function that `truncate` and `truncate_left` return."""

    dim: int
    from_left: bool

    def __call__(self, saved: np.ndarray, target: jax.ShapeDtypeStruct) -> np.ndarray:
        saved_size, size = _sizes(saved, target, self.dim)
        if saved_size < size:
            raise CheckpointError(
                f"expected at least {size} rows in dimension {self.dim}; found {saved_size}. "
                "Use `replace_prefix`."
            )
        return np.take(saved, range(-size, 0) if self.from_left else range(size), self.dim)


def replace_prefix(dim: int = 0) -> Adapt:
    """Return a function that puts the saved rows first in a dimension. The other rows stay as initialised.

    The function raises a `CheckpointError` if the target has fewer rows, or if another dimension
    differs.

    Args:
      dim: The dimension.

    Example:
      >>> rows = mw.engine.replace_prefix()(np.ones(2), jax.ShapeDtypeStruct((3,), float))
      >>> rows(jnp.zeros(3)).tolist()
      [1.0, 1.0, 0.0]
    """
    return ReplacePrefix(dim)


@dataclass(frozen=True)
class ReplacePrefix:
    """The function that `replace_prefix` returns."""

    dim: int

    def __call__(self, saved: np.ndarray, target: jax.ShapeDtypeStruct) -> Callable[[jax.Array], jax.Array]:
        saved_size, size = _sizes(saved, target, self.dim)
        if saved_size > size:
            raise CheckpointError(
                f"expected at most {size} rows in dimension {self.dim}; found {saved_size}. Use `truncate`."
            )
        return lambda fresh: jax.lax.dynamic_update_slice(fresh, saved, [0] * saved.ndim)


def _sizes(saved: np.ndarray, target: jax.ShapeDtypeStruct, dim: int) -> tuple[int, int]:
    """Return the size of a dimension in a saved array and in its target. All other dimensions are equal."""
    pairs = zip(saved.shape, target.shape, strict=False)
    differing = [d for d, (saved_size, size) in enumerate(pairs) if saved_size != size]
    has_dim = saved.ndim == len(target.shape) and -saved.ndim <= dim < saved.ndim
    if not has_dim or differing not in ([], [dim % saved.ndim]):
        raise CheckpointError(
            f"expected shape {target.shape}; found {saved.shape}. Only dimension {dim} may differ."
        )
    return saved.shape[dim], target.shape[dim]


def open_averages(path: str | Source) -> Source:
    """Open a checkpoint with the averages of `mw.training.keep_ema` in the place of the parameters.

    The averages may be anywhere in the optimizer's state. They have the dtypes of the parameters. All other
    arrays are those of the checkpoint.

    Args:
      path: A path or URL, as `open_source` takes it; or an open checkpoint, such as
        `mw.checkpoints.open_best` returns.

    Raises:
      CheckpointError: The checkpoint has no averages, or it cannot be opened.

    Example:
      >>> optimizer = optax.chain(optax.sgd(0.1), mw.training.keep_ema(0.9))
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, mw.training.state_from({"w": jnp.ones(2)}, optimizer, 0, layout))
      >>> np.asarray(mw.engine.open_averages("run").arrays()["params/w"])
      array([1., 1.], dtype=float32)
    """
    source = open_source(path) if isinstance(path, str) else path
    arrays = source.arrays()
    averages = _averages(arrays)
    if not averages:
        raise CheckpointError(
            f"{source} has no averages of its parameters.\n  A run keeps them with `keep_ema(0.999)` "
            "last in its optimizer. Open the parameters themselves with `open_source`."
        )
    return as_source({**arrays, **averages}, f"the averages of {source}")


def has_averages(source: Source) -> bool:
    """Return whether a checkpoint has averages of its parameters, which `mw.training.keep_ema` kept.

    Example:
      >>> mw.engine._internal.has_averages(mw.checkpoints.as_source({"params/w": np.ones(2)}, "mine"))
      False
    """
    return bool(_averages(source.arrays()))


def _averages(arrays: Mapping[str, LazyArray]) -> dict[str, LazyArray]:
    """Return the averages of each `EmaState`, by the names of the parameters."""
    # The averages of an `EmaState` lie under `opt_state/1/ema/`, beside their weight, `opt_state/1/mass`.
    states = [name.removesuffix("/mass") for name in arrays if name.endswith("/mass")]
    prefixes = [f"{state}/ema/" for state in states if state.split("/")[0] == "opt_state"]
    averages = {
        f"params/{name.removeprefix(prefix)}": x
        for prefix in prefixes
        for name, x in arrays.items()
        if name.startswith(prefix)
    }
    return {name: averages[name].astype(x.dtype) for name, x in arrays.items() if name in averages}
