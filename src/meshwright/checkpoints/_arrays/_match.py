"""Pairs each leaf of a target with a saved array or a fallback value, and lists all mismatches at once."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.base._internal import Table, judge, tree
from meshwright.checkpoints._arrays._cast import dtype_of, is_key, key_type
from meshwright.checkpoints._arrays._source import Source, spelling_of, stored_names
from meshwright.errors import CheckpointError, UsageError, nearest

Assign = Sequence[tuple[str, str | None]]
"""Pairs of a pattern for names in the target and a saved name, or None for the fallback.

`\\1` in a saved name is a group of the pattern."""

Fallback = tree.PyTree | Callable[[], tree.PyTree]
"""A tree with values for leaves that the checkpoint lacks, named as in the target; or a function that makes
it."""

_MAX_SUGGESTIONS = 20  # as each compares one name with all others


def matched(
    source: Source, wanted: Mapping[str, Any], assign: Assign, fallback: Fallback | None, ignore: str | None
) -> dict[str, Any]:
    """Return for each wanted leaf, by name, the `LazyArray` of the source or the value of the fallback."""
    saved, from_where = source.arrays(), origins(source, wanted, assign)
    found = {name: saved[origin] for name, origin in from_where.items() if origin in saved}
    # An assignment that leads nowhere is a mistake, which no fallback hides.
    lacking = {name for name, origin in from_where.items() if origin in (None, name) and name not in found}
    values = tree.named_leaves(fallback() if callable(fallback) else fallback) if lacking else {}
    given = {name: value for name, value in values.items() if name in lacking or name not in wanted}
    surplus = _surplus(source, from_where, ignore)
    problems = [
        *_missing(wanted.keys() - found.keys() - given.keys(), from_where, surplus, fallback),
        *_unfit(found, wanted, "the checkpoint"),
        *_unfit(given, wanted, "the fallback"),
        *(f"{name}: in the fallback, but not in the target" for name in given if name not in wanted),
        *(f"{name}: in the checkpoint, but not in the target" for name in surplus),
        *(["no leaf of the target is in the checkpoint"] if wanted and not found and given else []),
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit the target:\n  " + "\n  ".join(problems))
    return found | given


def origins(source: Source, names: Iterable[str], assign: Assign) -> dict[str, str | None]:
    """Return the name in `source` for each name in a target; None for those left to the fallback."""
    wanted = _assigned(names, assign)
    stored = stored_names(source, {origin for origin in wanted.values() if origin is not None})
    return {name: origin and stored[origin] for name, origin in wanted.items()}


def _assigned(names: Iterable[str], assign: Assign) -> dict[str, str | None]:
    """Return the saved name for each name in the target; None for those left to the fallback.

    The first pattern that matches decides; a name that none matches is its own saved name. If a pattern
    matches the last components of a name only, the components above are in no group, and so not in the saved
    name.
    Source: T5X's `apply_assignment_map`, whose patterns match whole names only.
    """
    names, table = list(names), Table.of("assign", assign)
    judge({table: names})
    decided = table.decisions(names)

    def origin(name: str) -> str | None:
        if name not in decided:
            return name
        number, found = decided[name]
        pattern, saved = assign[number]
        try:
            return saved if saved is None else found.expand(saved)
        except (re.error, IndexError) as error:
            raise UsageError(f"assign: {saved!r} does not fit the pattern {pattern!r}: {error}.") from None

    return {name: origin(name) for name in names}


def _surplus(source: Source, origins: Mapping[str, str | None], ignore: str | None) -> list[str]:
    ours = spelling_of(source).ours
    used = set(origins.values()) | {name for name, origin in origins.items() if origin is None}
    surplus = [name for name in source.arrays() if name not in used]
    if ignore is None:
        return surplus
    table = Table("ignore", (ignore,))
    judge({table: source.arrays()}, ours)
    return [name for name in surplus if table.first(name, ours(name)) is None]


def _missing(
    missing: Collection[str],
    origins: Mapping[str, str | None],
    surplus: list[str],
    fallback: Fallback | None,
) -> list[str]:
    where = "not in the checkpoint" if fallback is None else "neither in the checkpoint nor in the fallback"
    lines = []
    for number, name in enumerate(name for name in origins if name in missing):
        origin = origins[name]
        close = nearest(origin, surplus) if origin and number < _MAX_SUGGESTIONS else None
        hint = f"; did you mean {close}?" if close else ""
        if origin is None:
            lines.append(f"{name}: assigned to the fallback, but not in it")
        elif origin != name:
            lines.append(f"{name}: assigned {origin}, which is not in the checkpoint{hint}")
        else:
            lines.append(f"{name}: in the target, but {where}{hint}")
    return lines


def _unfit(held: Mapping[str, Any], wanted: Mapping[str, Any], holder: str) -> list[str]:
    pairs = ((name, held[name], wanted[name]) for name in wanted if name in held)
    return [line for name, has, wants in pairs for line in _differences(name, has, wants, holder)]


def _differences(name: str, held: Any, wanted: Any, holder: str) -> list[str]:
    (shape, dtype), (wanted_shape, wanted_dtype) = _type(held), _type(wanted)
    differences = []
    if shape != wanted_shape:
        differences.append(f"{name}: shape {shape} in {holder}, {wanted_shape} in the target")
    if dtype != wanted_dtype:
        differences.append(f"{name}: dtype {dtype} in {holder}, {wanted_dtype} in the target")
    return differences


def _type(leaf: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype's name of a leaf; for PRNG keys, the shape of their data."""
    if is_key(leaf):
        impl, shape = key_type(leaf)
        return shape, f"key<{impl}>"
    if getattr(leaf, "key_impl", None):
        return leaf.shape, f"key<{leaf.key_impl}>"
    return np.shape(leaf), dtype_of(leaf).name
