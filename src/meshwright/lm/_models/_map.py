"""Maps between a model's parameters in two libraries: tables of names and shapes, used in both directions.

`check_complete` checks that a map has given all parameters of a reference model, and nothing else.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.base._internal import Table, compiled, tree
from meshwright.checkpoints._internal import LazyArray, Source, as_source, concatenate, restore_lazily, stack
from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.training._internal import key_of

_INITS: dict[type, Callable[[Any, jax.Array], tree.PyTree]] = {
    decoder.Config: decoder.init,
    gpt2.Config: gpt2.init,
    t5.Config: t5.init,
}


@dataclass(frozen=True)
class Transpose:
    """A step of a row: reverse the dimensions, as weights of PyTorch's `Linear` are [out, in].

    Example:
      >>> table = mw.lm.Map((mw.lm.Row("w", "linear.weight", (mw.lm.Transpose(),)),))
      >>> ours = mw.checkpoints.as_source({"w": np.zeros((3, 2))}, "ours")
      >>> table.to_theirs(ours).arrays()["linear.weight"].shape
      (2, 3)
    """

    def to_ours(self, array: LazyArray) -> LazyArray:
        """Return our array, lazily, given theirs."""
        return array.transpose()

    def to_theirs(self, array: LazyArray) -> LazyArray:
        """Return their array, lazily, given ours."""
        return array.transpose()


@dataclass(frozen=True)
class Reshape:
    """A step of a row: change the shape, for instance to give heads their own dimension.

    Example:
      >>> heads = mw.lm.Reshape(theirs=(8, 6), ours=(8, 2, 3))
      >>> table = mw.lm.Map((mw.lm.Row("q", "query.weight", (heads,)),))
      >>> theirs = mw.checkpoints.as_source({"query.weight": np.zeros((8, 6))}, "theirs")
      >>> table.to_ours(theirs).arrays()["q"].shape
      (8, 2, 3)
    """

    theirs: tuple[int, ...]
    """The shape in the other library."""
    ours: tuple[int, ...]
    """The shape here."""

    def to_ours(self, array: LazyArray) -> LazyArray:
        """Return our array, lazily, given theirs."""
        return _reshaped(array, self.theirs, self.ours)

    def to_theirs(self, array: LazyArray) -> LazyArray:
        """Return their array, lazily, given ours."""
        return _reshaped(array, self.ours, self.theirs)


Step = Transpose | Reshape


@dataclass(frozen=True)
class Row:
    """A row of a map: an array of the other library, or one in each layer, and the array here.

    Raises:
      UsageError: The sizes do not fit the names, or a name has more than one `{}`.

    Example:
      >>> table = mw.lm.Map((mw.lm.Row("layers/w", "h.{}.weight"),))
      >>> theirs = {"h.0.weight": np.zeros(3), "h.1.weight": np.ones(3)}
      >>> table.to_ours(mw.checkpoints.as_source(theirs, "theirs")).arrays()["layers/w"].shape
      (2, 3)
    """

    ours: str | tuple[str, ...]
    """The array's name here; several names if their array is split along our last dimension."""
    theirs: str
    """The array's name in the other library, in which `{}` stands for the layer's number. Our array holds
    all layers, stacked, unless its name has a `{}`, too."""
    steps: tuple[Step, ...] = ()
    """Changes from theirs to ours, in order, applied to each layer."""
    sizes: tuple[int, ...] = ()
    """The sizes of the parts along our last dimension, if `ours` has several names."""
    layers_dim: int | None = None
    """The dimension of their array along which it holds all layers, as models of Flax that scan over layers
    have it; None if theirs is the array of one layer, or of none."""
    num_experts: int = 0
    """The number of experts, if theirs is the array of one expert: a second `{}` in its name stands for the
    expert's number. Our array holds all, along its second dimension."""

    def __post_init__(self) -> None:
        if len(self.sizes) != (0 if isinstance(self.ours, str) else len(self.ours)):
            raise UsageError(
                f"the row of {self.theirs} must have a size for each of {self.ours} if these are several, "
                f"and none otherwise; sizes is {self.sizes}."
            )
        most = 2 if self.num_experts else 1
        if several := [name for name in (self.theirs, *self.names) if name.count("{}") > most]:
            raise UsageError(
                f"the row of {self.theirs} has several {{}} in {several[0]}; a name has one layer number."
            )
        if "{}" in self.theirs and self.layers_dim is not None:
            raise UsageError(f"the row of {self.theirs} has a {{}} for one layer and layers_dim for all.")
        if numbered := [name for name in self.names if "{}" in name and not self.has_layers]:
            raise UsageError(
                f"the row of {self.theirs} has a {{}} only in {numbered[0]}, so there is no number for it."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Return our names, one or several."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    @property
    def has_layers(self) -> bool:
        """Return whether their array is one of several layers, or holds several."""
        return "{}" in self.theirs or self.layers_dim is not None


@dataclass(frozen=True)
class Map:
    """A map between all parameters of a model in another library and here, which converts sources lazily.

    Raises:
      UsageError: Two rows have the same array, or `ignore` is not a pattern.

    Example:
      >>> table = mw.lm.Map((mw.lm.Row("w", "linear.weight", (mw.lm.Transpose(),)),))
      >>> theirs = mw.checkpoints.as_source({"linear.weight": np.zeros((3, 2))}, "theirs")
      >>> table.to_ours(theirs).arrays()["w"].shape
      (2, 3)
    """

    rows: tuple[Row, ...]
    """A row for each array, or for each array of a layer."""
    ignore: str = ""
    """A pattern for their names to leave out: buffers, and heads that are tied to the embedding."""
    prefix: str = ""
    """A prefix of their names that some checkpoints leave out."""

    def __post_init__(self) -> None:
        for names in ([row.theirs for row in self.rows], [name for row in self.rows for name in row.names]):
            if several := [name for name in names if names.count(name) > 1]:
                raise UsageError(f"a map has several rows for {several[0]}; only one of them would be used.")
        # The table raises an error if `ignore` is not a pattern.
        Table("Map.ignore", (self.ignore,))

    def to_ours(self, source: Source) -> Source:
        """Return a source with our names and shapes, given one with theirs. Arrays without a row are kept.

        Raises:
          CheckpointError: A layer is missing between others, or an array does not fit its row.
        """
        theirs = {self._with_prefix(name): x for name, x in source.arrays().items()}
        theirs = {name: x for name, x in theirs.items() if not compiled(self.ignore)(name)}
        ours: dict[str, LazyArray] = {}
        for row in self.rows:
            converted = [
                _to_ours(expert_row, _apart(expert_row, _layers(expert_row.theirs, theirs, source)))
                for expert_row in _expert_rows(row)
            ]
            ours |= _with_all_experts(row, converted, source) if row.num_experts else converted[0]
            if clashing := theirs.keys() & ours.keys():
                name = min(clashing)
                raise CheckpointError(
                    f"{source} has {name}, which has no row, and {row.theirs}, which becomes {name}."
                )
        return as_source(ours | theirs, str(source))

    def to_theirs(self, source: Source) -> Source:
        """Return a source with their names and shapes, given one with ours.

        Raises:
          CheckpointError: An array has no row or does not fit its row, or some parts of their array are
            missing.
        """
        ours, theirs = dict(source.arrays()), {}
        for row in self.rows:
            arrays_of_experts = _pop_expert_arrays(row, ours, source) if row.num_experts else [ours]
            for expert_row, arrays in zip(_expert_rows(row), arrays_of_experts, strict=True):
                parts = [_unstacked(name, expert_row, arrays, source) for name in expert_row.names]
                theirs |= _to_theirs(expert_row, parts, source)
        if ours:
            listed = ", ".join(sorted(ours)[:10])
            raise CheckpointError(f"{source}: the map has no row for {listed}. Add one, or leave it out.")
        return as_source(theirs, str(source))

    def _with_prefix(self, name: str) -> str:
        rows = (_pattern(row.theirs) for row in self.rows)
        return self.prefix + name if any(row.fullmatch(self.prefix + name) for row in rows) else name


Layers = dict[int | None, LazyArray]
"""An array for each layer, by the layer's number; or a single array, by None."""


def _to_ours(row: Row, layers: Layers) -> dict[str, LazyArray]:
    parts: list[Layers] = [{} for _ in row.names]
    with _naming(row):
        for layer, array in layers.items():
            for step in row.steps:
                array = step.to_ours(array)
            for part, split in zip(parts, _split(row, array), strict=True):
                part[layer] = split
        named = zip(row.names, parts, strict=True)
        return {name: array for pair in named if layers for name, array in _stacked(*pair).items()}


def _to_theirs(row: Row, parts: list[Layers], source: Source) -> dict[str, LazyArray]:
    if any(part.keys() != parts[0].keys() for part in parts):
        raise CheckpointError(f"{source} must have the same layers for all of {', '.join(row.names)}.")
    theirs: Layers = {}
    with _naming(row):
        for layer in parts[0]:
            array = concatenate([part[layer] for part in parts]) if len(parts) > 1 else parts[0][layer]
            # The way back takes the inverse steps in the inverse order.
            for step in reversed(row.steps):
                array = step.to_theirs(array)
            theirs[layer] = array
        if row.layers_dim is not None and theirs:
            return {row.theirs: stack(list(theirs.values()), row.layers_dim)}
    return {_numbered(row.theirs, layer): array for layer, array in theirs.items()}


def _expert_rows(row: Row) -> list[Row]:
    """Return a row for each expert; the row itself if it is not of experts."""
    if not row.num_experts:
        return [row]
    prefix, _, suffix = row.theirs.rpartition("{}")
    return [
        replace(row, theirs=f"{prefix}{number}{suffix}", num_experts=0) for number in range(row.num_experts)
    ]


def _with_all_experts(
    row: Row, arrays_by_expert: list[dict[str, LazyArray]], source: Source
) -> dict[str, LazyArray]:
    """Return our arrays with all experts, given those of each, [L, ...]."""
    layers = [max((x.shape[0] for x in arrays.values()), default=0) for arrays in arrays_by_expert]
    if not any(layers):
        return {}
    if min(layers) < max(layers):
        raise CheckpointError(
            f"{source} has {row.theirs} of expert {layers.index(min(layers))} in {min(layers)} layers, but "
            f"of expert {layers.index(max(layers))} in {max(layers)}."
        )
    with _naming(row):
        return {
            name: stack(_widened(arrays[name] for arrays in arrays_by_expert), 1)
            for name in arrays_by_expert[0]
        }


def _pop_expert_arrays(row: Row, ours: dict[str, LazyArray], source: Source) -> list[dict[str, LazyArray]]:
    """Remove our arrays of a row from `ours`, and return those of each expert: the inverse of `_together`."""
    stacked = {name: ours.pop(name) for name in row.names if name in ours}
    for name, array in stacked.items():
        if array.shape[1:2] != (row.num_experts,):
            raise CheckpointError(
                f"{source}: {name} of shape {array.shape} has not {row.num_experts} experts in dimension 1."
            )
    return [{name: x[:, number] for name, x in stacked.items()} for number in range(row.num_experts)]


def _apart(row: Row, layers: Layers) -> Layers:
    """Return the layers of an array that holds all of them along one dimension; others as they are."""
    if row.layers_dim is None or not layers:
        return layers
    array, leading = layers[None], (slice(None),) * row.layers_dim
    if array.ndim <= row.layers_dim:
        raise CheckpointError(
            f"{row.theirs} of shape {array.shape} has no dimension {row.layers_dim} for the layers."
        )
    return {layer: array[*leading, layer] for layer in range(array.shape[row.layers_dim])}


@contextmanager
def _naming(row: Row) -> Iterator[None]:
    """Add the array's name to the error if it does not fit its row."""
    try:
        yield
    except UsageError as error:
        raise CheckpointError(f"{row.theirs}: {error}") from None


def _reshaped(array: LazyArray, shape: tuple[int, ...], new_shape: tuple[int, ...]) -> LazyArray:
    if array.shape != shape:
        raise UsageError(
            f"the map expects an array of shape {shape}, to reshape it to {new_shape}; this has "
            f"{array.shape}."
        )
    return array.reshape(*new_shape)


def _layers(template: str, arrays: dict[str, LazyArray], source: Source) -> Layers:
    """Remove the arrays whose names fit `template` from `arrays`, and return them by layer, in order."""
    matches = [match for name in arrays if (match := _pattern(template).fullmatch(name))]
    layers = {int(match[1]) if match.re.groups else None: arrays.pop(match[0]) for match in matches}
    missing = set(range(len(layers))) - layers.keys() if "{}" in template else ()
    if missing:
        raise CheckpointError(
            f"{source} has {len(layers)} of {template}, but number {min(missing)} is missing."
        )
    return dict(sorted(layers.items(), key=lambda item: item[0] or 0))


def _split(row: Row, array: LazyArray) -> list[LazyArray]:
    if not row.sizes:
        return [array]
    if not array.shape:
        raise CheckpointError(f"{row.theirs} is a scalar, and cannot be split into {row.sizes} columns.")
    if sum(row.sizes) != array.shape[-1]:
        raise CheckpointError(
            f"{row.theirs} has {array.shape[-1]} columns, and cannot be split into {row.sizes}."
        )
    ends = list(itertools.accumulate(row.sizes))
    rows = (slice(None),) * (array.ndim - 1)
    return [array[*rows, end - size : end] for end, size in zip(ends, row.sizes, strict=True)]


def _stacked(name: str, layers: Layers) -> dict[str, LazyArray]:
    """Return a single array, all layers stacked, or each layer under its own name."""
    if None in layers or "{}" in name:
        return {_numbered(name, layer): array for layer, array in layers.items()}
    return {name: stack(_widened(layers.values()))}


def _widened(arrays: Iterable[LazyArray]) -> list[LazyArray]:
    """Return arrays in the narrowest floating dtype that has all their values, if they have several."""
    arrays = list(arrays)
    dtypes = {x.dtype for x in arrays}
    if len(dtypes) > 1 and all(jnp.issubdtype(x, jnp.floating) and x.itemsize > 1 for x in dtypes):
        # Layers of one stack must have one dtype, and no value may be rounded.
        widest = functools.reduce(jnp.promote_types, dtypes)
        return [x.astype(widest) for x in arrays]
    return arrays


def _unstacked(name: str, row: Row, ours: dict[str, LazyArray], source: Source) -> Layers:
    """Remove an array of ours from `ours`, and return its layers: the inverse of `_stacked`."""
    if "{}" in name or not row.has_layers:
        return _layers(name, ours, source)
    stacked = ours.pop(name, None)
    if stacked is not None and not stacked.shape:
        raise CheckpointError(f"{source}: {name} is a scalar, not a stack of layers.")
    return {} if stacked is None else {layer: stacked[layer] for layer in range(stacked.shape[0])}


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{\}", r"(\d+)"))


def _numbered(template: str, layer: int | None) -> str:
    return template.replace("{}", str(layer))


def check_complete(source: Source, cfg: decoder.Config | gpt2.Config | t5.Config) -> None:
    """Check names and shapes, as loaders fill missing parameters with random numbers. Dtypes may differ."""
    saved = source.arrays()
    expected = tree.named_leaves(jax.eval_shape(lambda: _INITS[type(cfg)](cfg, key_of(0))))
    structs = {
        name: jax.ShapeDtypeStruct(x.shape, saved[name].dtype if name in saved else x.dtype)
        for name, x in expected.items()
    }
    restore_lazily(source, tree.nested(structs))
