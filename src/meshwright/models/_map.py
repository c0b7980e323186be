"""What a model's parameters are called, and how they lie, in two libraries: a table to use both ways."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meshwright.arrays import LazyArray, Source, as_source, concatenate, stack
from meshwright.errors import CheckpointError, UsageError
from meshwright.patterns import Table, compiled


@dataclass(frozen=True)
class Transpose:
    """Ours has its dimensions in the opposite order: weights of PyTorch's `Linear` are [out, in]."""

    def to_ours(self, array: LazyArray) -> LazyArray:
        """Return an array of theirs as ours."""
        return array.transpose()

    def to_theirs(self, array: LazyArray) -> LazyArray:
        """Return an array of ours as theirs."""
        return array.transpose()


@dataclass(frozen=True)
class Reshape:
    """Ours has another shape: heads in a dimension of their own, say."""

    theirs: tuple[int, ...]
    ours: tuple[int, ...]

    def to_ours(self, array: LazyArray) -> LazyArray:
        """Return an array of theirs as ours."""
        return _reshaped(array, self.theirs, self.ours)

    def to_theirs(self, array: LazyArray) -> LazyArray:
        """Return an array of ours as theirs."""
        return _reshaped(array, self.ours, self.theirs)


Step = Transpose | Reshape


@dataclass(frozen=True)
class Row:
    """One array of theirs, or one in each layer, and what it is with us.

    Raises:
      UsageError: it says too little, or more than one layer's number.
    """

    ours: str | tuple[str, ...]
    """Its name with us; several where theirs is split, along the last dimension of ours."""
    theirs: str
    """`{}` in it is the layer's number. Ours holds all layers, stacked, unless it has a `{}`, too."""
    steps: tuple[Step, ...] = ()
    """From theirs to ours, in this order, layer by layer."""
    sizes: tuple[int, ...] = ()
    """Of the parts, where `ours` are several."""

    def __post_init__(self) -> None:
        if len(self.sizes) != (0 if isinstance(self.ours, str) else len(self.ours)):
            raise UsageError(
                f"the row of {self.theirs} must have a size for each of {self.ours}, if several."
            )
        if several := [name for name in (self.theirs, *self.names) if name.count("{}") > 1]:
            raise UsageError(
                f"the row of {self.theirs} has several {{}} in {several[0]}; there is one number."
            )
        if numbered := [name for name in self.names if "{}" in name and "{}" not in self.theirs]:
            raise UsageError(
                f"the row of {self.theirs} has a {{}} in {numbered[0]} only, and no number for it."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names with us, of which there may be one."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Map:
    """Rows for all parameters of a model: a source of theirs is one of ours, and one of ours one of theirs.

    Nothing is read but what is asked of the new source, and of the old one only what that takes.

    Raises:
      UsageError: two rows are of one array, or `ignore` is no pattern.
    """

    rows: tuple[Row, ...]
    ignore: str = ""
    """A pattern for names of theirs that say nothing new: buffers, and heads that are tied."""
    prefix: str = ""
    """What their names begin with, but in some checkpoints do not."""

    def __post_init__(self) -> None:
        for names in ([row.theirs for row in self.rows], [name for row in self.rows for name in row.names]):
            if several := [name for name in names if names.count(name) > 1]:
                raise UsageError(f"a map has several rows for {several[0]}; one of them would be lost.")
        Table("Map.ignore", (self.ignore,))  # raises if it is no pattern

    def to_ours(self, source: Source) -> Source:
        """Return `source`, which has their names, with ours. What has no row keeps its name.

        Raises:
          CheckpointError: Layers are missing in between, or an array does not fit its row.
        """
        theirs = {self._with_prefix(name): x for name, x in source.arrays().items()}
        theirs = {name: x for name, x in theirs.items() if not compiled(self.ignore)(name)}
        ours: dict[str, LazyArray] = {}
        for row in self.rows:
            ours |= _to_ours(row, _layers(row.theirs, theirs, source))
            if clashing := theirs.keys() & ours.keys():
                name = min(clashing)
                raise CheckpointError(
                    f"{source} has {name}, which has no row, and {row.theirs}, which becomes {name}."
                )
        return as_source(ours | theirs, str(source))

    def to_theirs(self, source: Source) -> Source:
        """Return `source`, which has our names, with theirs.

        Raises:
          CheckpointError: It has an array without a row, which would be lost, or one that does not fit its
            row, or some parts of one of theirs.
        """
        ours, theirs = dict(source.arrays()), {}
        for row in self.rows:
            theirs |= _to_theirs(row, [_unstacked(name, row, ours, source) for name in row.names], source)
        if ours:
            listed = ", ".join(sorted(ours)[:10])
            raise CheckpointError(f"{source}: the map has no row for {listed}, so they have no names there.")
        return as_source(theirs, str(source))

    def _with_prefix(self, name: str) -> str:
        rows = (_pattern(row.theirs) for row in self.rows)
        return self.prefix + name if any(row.fullmatch(self.prefix + name) for row in rows) else name


Layers = dict[int | None, LazyArray]
"""An array of each layer, by its number; or one alone, by None."""


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
        raise CheckpointError(
            f"{source} must have the same layers of all of {', '.join(row.names)}, or of none."
        )
    theirs = {}
    with _naming(row):
        for layer in parts[0]:
            array = concatenate([part[layer] for part in parts]) if len(parts) > 1 else parts[0][layer]
            for step in reversed(row.steps):
                array = step.to_theirs(array)
            theirs[_numbered(row.theirs, layer)] = array
    return theirs


@contextmanager
def _naming(row: Row) -> Iterator[None]:
    """Say of an array that does not fit which one it is."""
    try:
        yield
    except UsageError as error:
        raise CheckpointError(f"{row.theirs}: {error}") from None


def _reshaped(array: LazyArray, shape: tuple[int, ...], wanted: tuple[int, ...]) -> LazyArray:
    if array.shape != shape:
        raise UsageError(
            f"the row is for an array of shape {shape}, which becomes {wanted}, not {array.shape}."
        )
    return array.reshape(*wanted)


def _layers(template: str, arrays: dict[str, LazyArray], source: Source) -> Layers:
    """Take the arrays whose names `template` has, in the order of their numbers."""
    matches = [match for name in arrays if (match := _pattern(template).fullmatch(name))]
    found = {int(match[1]) if match.re.groups else None: arrays.pop(match[0]) for match in matches}
    missing = set(range(len(found))) - found.keys() if "{}" in template else ()
    if missing:
        raise CheckpointError(f"{source} has {len(found)} of {template}, but not number {min(missing)}.")
    return dict(sorted(found.items(), key=lambda item: item[0] or 0))


def _split(row: Row, array: LazyArray) -> list[LazyArray]:
    if not row.sizes:
        return [array]
    if not array.shape:
        raise CheckpointError(f"{row.theirs} has no columns, and cannot be split into {row.sizes}.")
    if sum(row.sizes) != array.shape[-1]:
        raise CheckpointError(
            f"{row.theirs} has {array.shape[-1]} columns, and cannot be split into {row.sizes}."
        )
    ends = list(itertools.accumulate(row.sizes))
    rows = (slice(None),) * (array.ndim - 1)
    return [array[*rows, end - size : end] for end, size in zip(ends, row.sizes, strict=True)]


def _stacked(name: str, layers: Layers) -> dict[str, LazyArray]:
    """Return one layer's array, all layers' stacked, or all of them by names of their own."""
    if None in layers or "{}" in name:
        return {_numbered(name, layer): array for layer, array in layers.items()}
    return {name: stack(list(layers.values()))}


def _unstacked(name: str, row: Row, ours: dict[str, LazyArray], source: Source) -> Layers:
    """Take what `_stacked` returned."""
    if "{}" in name or "{}" not in row.theirs:
        return _layers(name, ours, source)
    stacked = ours.pop(name, None)
    if stacked is not None and not stacked.shape:
        raise CheckpointError(f"{source}: {name} is a number, and no stack of layers.")
    return {} if stacked is None else {layer: stacked[layer] for layer in range(stacked.shape[0])}


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{\}", r"(\d+)"))


def _numbered(template: str, layer: int | None) -> str:
    return template.replace("{}", str(layer))
