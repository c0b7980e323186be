"""Which saved array, or fallback value, each wanted leaf gets, and all that does not fit, at once."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright import tree
from meshwright.checkpoint._cast import dtype_of
from meshwright.checkpoint._keys import is_key, key_type
from meshwright.checkpoint._patterns import compiled, first_matches
from meshwright.checkpoint._source import Source
from meshwright.errors import CheckpointError, UsageError

Assign = Sequence[tuple[str, str | None]]
"""Patterns for whole wanted names, and the saved name each gets, in which `\\1` is a group, or None."""

Fallback = tree.PyTree | Callable[[], tree.PyTree]
"""Values for what a checkpoint lacks, in a tree that names them as the target does; or how to make it."""

_MAX_SUGGESTIONS = 20  # each compares one name with all others


def match(
    source: Source, wanted: Mapping[str, Any], assign: Assign, fallback: Fallback | None, ignore: str | None
) -> dict[str, Any]:
    """Return for each wanted leaf, by name, the `LazyArray` of the source or the value of the fallback.

    Raises: as `restore`.
    """
    saved, origins = source.arrays(), assigned(wanted, assign)
    found = {name: saved[origin] for name, origin in origins.items() if origin in saved}
    given = _values(fallback) if len(found) < len(wanted) else {}
    # An assignment that leads nowhere is a mistake, which no fallback hides.
    may_lack = {name for name, origin in origins.items() if origin in (None, name)}
    given = {name: value for name, value in given.items() if name in may_lack or name not in wanted}
    had, surplus = found.keys() | given.keys(), _surplus(saved, origins, ignore)
    problems = [
        *_missing([name for name in wanted if name not in had], origins, surplus, fallback),
        *_unfit(found, wanted, "the checkpoint"),
        *_unfit({name: x for name, x in given.items() if name not in found}, wanted, "the fallback"),
        *(f"{name}: in the fallback, but not wanted" for name in given if name not in wanted),
        *(f"{name}: in the checkpoint, but not wanted" for name in surplus),
        *(["nothing of what is wanted is in the checkpoint"] if wanted and not found and given else []),
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit the target:\n  " + "\n  ".join(problems))
    return given | found


def assigned(names: Iterable[str], assign: Assign) -> dict[str, str | None]:
    """Return the saved name that each wanted name stands for; None where the fallback is to be taken.

    The first pattern that matches the whole name decides; names that none matches stand for themselves.
    Source: T5X's `apply_assignment_map`.

    Raises:
      UsageError: A pattern decides nothing, or a saved name refers to a group that is not there.
    """
    names = list(names)
    decided = first_matches([pattern for pattern, _ in assign], names)

    def origin(name: str) -> str | None:
        if name not in decided:
            return name
        number, found = decided[name]
        pattern, saved = assign[number]
        try:
            return saved if saved is None else found.expand(saved)
        except (re.error, IndexError) as error:
            raise UsageError(f"assign: {saved!r} does not go with {pattern!r}: {error}.") from None

    return {name: origin(name) for name in names}


def _values(fallback: Fallback | None) -> dict[str, Any]:
    return tree.named_leaves(fallback() if callable(fallback) else fallback)


def _surplus(saved: Iterable[str], origins: Mapping[str, str | None], ignore: str | None) -> list[str]:
    used = set(origins.values()) | {name for name, origin in origins.items() if origin is None}
    ignored = compiled(ignore).fullmatch if ignore is not None else lambda name: None
    return [name for name in saved if name not in used and not ignored(name)]


def _missing(
    missing: list[str], origins: Mapping[str, str | None], surplus: list[str], fallback: Fallback | None
) -> list[str]:
    where = "not in the checkpoint" if fallback is None else "neither in the checkpoint nor in the fallback"
    close = {name: tree.nearest(origins[name] or name, surplus) for name in missing[:_MAX_SUGGESTIONS]}
    hints = {name: f"; did you mean {other}?" for name, other in close.items() if other}

    def line(name: str) -> str:
        match origins[name]:
            case None:
                return f"{name}: left to the fallback, but not in it"
            case origin if origin != name:
                return f"{name}: assigned {origin}, which is not in the checkpoint{hints.get(name, '')}"
            case _:
                return f"{name}: wanted, but {where}{hints.get(name, '')}"

    return [line(name) for name in missing]


def _unfit(held: Mapping[str, Any], wanted: Mapping[str, Any], holder: str) -> list[str]:
    pairs = ((name, held[name], wanted[name]) for name in wanted if name in held)
    return [line for name, has, wants in pairs for line in _differences(name, has, wants, holder)]


def _differences(name: str, held: Any, wanted: Any, holder: str) -> list[str]:
    (shape, dtype), (wanted_shape, wanted_dtype) = _type(held), _type(wanted)
    differences = []
    if shape != wanted_shape:
        differences.append(f"{name}: shape {shape} in {holder}, {wanted_shape} wanted")
    if dtype != wanted_dtype:
        differences.append(f"{name}: dtype {dtype} in {holder}, {wanted_dtype} wanted")
    return differences


def _type(leaf: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape and the name of the dtype of a leaf; of PRNG keys, of their data."""
    if is_key(leaf):
        impl, shape = key_type(leaf)
        return shape, f"key<{impl}>"
    if getattr(leaf, "key_impl", None):
        return leaf.shape, f"key<{leaf.key_impl}>"
    return np.shape(leaf), dtype_of(leaf).name
