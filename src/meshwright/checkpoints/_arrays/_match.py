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

# Limited, as each suggestion compares one name with all others.
_MAX_SUGGESTIONS = 20


def matched(
    source: Source, target: Mapping[str, Any], assign: Assign, fallback: Fallback | None, ignore: str | None
) -> dict[str, Any]:
    """Return for each wanted leaf, by name, the `LazyArray` of the source or the value of the fallback."""
    saved, from_where = source.arrays(), origins(source, target, assign)
    from_source = {name: saved[origin] for name, origin in from_where.items() if origin in saved}
    # An assignment that leads nowhere is a mistake, which no fallback hides.
    lacking = {
        name for name, origin in from_where.items() if origin in (None, name) and name not in from_source
    }
    values = tree.named_leaves(fallback() if callable(fallback) else fallback) if lacking else {}
    from_fallback = {name: value for name, value in values.items() if name in lacking or name not in target}
    surplus = _surplus(source, from_where, ignore)
    problems = [
        *_missing(target.keys() - from_source.keys() - from_fallback.keys(), from_where, surplus, fallback),
        *_unfit(from_source, target, "the checkpoint"),
        *_unfit(from_fallback, target, "the fallback"),
        *(f"{name}: in the fallback, but not in the target" for name in from_fallback if name not in target),
        *(f"{name}: in the checkpoint, but not in the target" for name in surplus),
        *(
            ["no leaf of the target is in the checkpoint"]
            if target and not from_source and from_fallback
            else []
        ),
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit the target:\n  " + "\n  ".join(problems))
    return from_source | from_fallback


def origins(source: Source, names: Iterable[str], assign: Assign) -> dict[str, str | None]:
    """Return the name in `source` for each name in a target; None for those left to the fallback."""
    assigned = _assigned(names, assign)
    stored = stored_names(source, {origin for origin in assigned.values() if origin is not None})
    return {name: origin and stored[origin] for name, origin in assigned.items()}


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
        number, match = decided[name]
        pattern, saved = assign[number]
        try:
            return saved if saved is None else match.expand(saved)
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


def _unfit(leaves: Mapping[str, Any], target: Mapping[str, Any], holder: str) -> list[str]:
    pairs = ((name, leaves[name], target[name]) for name in target if name in leaves)
    return [line for name, has, wants in pairs for line in _differences(name, has, wants, holder)]


def _differences(name: str, leaf: Any, target: Any, holder: str) -> list[str]:
    (shape, dtype), (target_shape, target_dtype) = _type(leaf), _type(target)
    differences = []
    if shape != target_shape:
        differences.append(f"{name}: shape {shape} in {holder}, {target_shape} in the target")
    if dtype != target_dtype:
        differences.append(f"{name}: dtype {dtype} in {holder}, {target_dtype} in the target")
    return differences


def _type(leaf: Any) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype's name of a leaf; for PRNG keys, the shape of their data."""
    if is_key(leaf):
        impl, shape = key_type(leaf)
        return shape, f"key<{impl}>"
    if getattr(leaf, "key_impl", None):
        return leaf.shape, f"key<{leaf.key_impl}>"
    return np.shape(leaf), dtype_of(leaf).name
