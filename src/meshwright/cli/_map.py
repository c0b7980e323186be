"""`convert --map`: rename arrays from a foreign naming to Meshwright's or, with `to-` in front, back."""

import argparse
from collections.abc import Callable
from typing import Any

from meshwright.checkpoints import _internal as checkpoints
from meshwright.cli._target import find
from meshwright.errors import UsageError
from meshwright.lm import _internal as lm

HUGGING_FACE = "hugging-face"
T5X = {"t5x": False, "t5x-scanned": True}
"""The maps of T5X, and whether one array holds all layers; when reading, the checkpoint tells."""
TO = "to-"
STATE = "params/"


def is_back(options: argparse.Namespace) -> bool:
    """Return whether the map goes from Meshwright's names to foreign ones."""
    return (options.map or "").startswith(TO)


def is_hugging_face(options: argparse.Namespace) -> bool:
    """Return whether the map is Hugging Face's, in either direction."""
    return (options.map or "").removeprefix(TO) == HUGGING_FACE


def is_t5x(options: argparse.Namespace) -> bool:
    """Return whether the map is one of T5X's, in either direction."""
    return (options.map or "").removeprefix(TO) in T5X


def to_ours(options: argparse.Namespace) -> "Callable[[checkpoints.Source], checkpoints.Source]":
    """Return the function that renames foreign arrays to Meshwright's names."""
    if is_hugging_face(options):
        cfg = lm.hugging_face.config(options.config or options.source)
        return lambda source: _under("params", lm.hugging_face.to_ours(source, cfg))
    if is_t5x(options):
        return lambda source: _under("params", lm.t5x.to_ours(source))
    names = _named(options.map)
    return lambda source: _all_to_ours(names, source)


def to_theirs(
    options: argparse.Namespace, **chosen: Any
) -> "Callable[[checkpoints.Source], checkpoints.Source]":
    """Return the function that takes a run's parameters and renames them to foreign names.

    For Hugging Face they keep Meshwright's names: its export renames them and compares them with
    `config.json`.
    """
    if is_hugging_face(options):
        return lambda source: checkpoints.with_changes(_parameters(source), **chosen)
    if is_t5x(options):
        scanned = T5X[options.map.removeprefix(TO)]
        return lambda source: lm.t5x.to_theirs(
            checkpoints.with_changes(_parameters(source), **chosen), scanned=scanned
        )
    names = _named(options.map.removeprefix(TO))
    if _is_of_state(names):
        return lambda source: names.to_theirs(checkpoints.with_changes(source, **chosen))
    return lambda source: names.to_theirs(checkpoints.with_changes(_parameters(source), **chosen))


def _parameters(source: "checkpoints.Source") -> "checkpoints.Source":
    """Return the parameters of a run's state, or of a T5 of T5X, without `params/`; others as they are."""
    if lm.t5x.recognises(source):
        return lm.t5x.to_ours(source)
    is_state = any(name.startswith(STATE) for name in source.arrays())
    return checkpoints.subtree(source, STATE.rstrip("/")) if is_state else source


def _all_to_ours(names: "lm.Map", source: "checkpoints.Source") -> "checkpoints.Source":
    """Return all arrays under Meshwright's names, below `params` unless the map itself says so."""
    ours = names.to_ours(source)
    names.to_theirs(ours)  # raises if an array has no row in the map; reads no data
    return ours if _is_of_state(names) else _under("params", ours)


def _is_of_state(names: "lm.Map") -> bool:
    return any(name.startswith(STATE) for row in names.rows for name in row.names)


def _under(prefix: str, source: "checkpoints.Source") -> "checkpoints.Source":
    arrays = {f"{prefix}/{name}": array for name, array in source.arrays().items()}
    return checkpoints.as_source(arrays, str(source))


def _named(target: str) -> "lm.Map":
    """Return the user's map `module:name`, calling it if it is a function."""
    if ":" not in target:
        raise UsageError(
            f"--map {target!r} is unknown. Write {HUGGING_FACE}, t5x, or module:map for an mw.lm.Map of "
            f"your own. With {TO} in front it converts back: {TO}{HUGGING_FACE}."
        )
    import inspect

    value = find(target, "map", "NAMES", lambda value: isinstance(value, lm.Map) or inspect.isroutine(value))
    if isinstance(value, lm.Map):
        return value
    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise UsageError(f"--map {target} is a function that must take no arguments: {error}.") from None
    names = value()
    if not isinstance(names, lm.Map):
        raise UsageError(
            f"--map {target} must return an mw.lm.Map; it returned a value of type {type(names).__name__}."
        )
    return names
