"""`convert --map`: from the names of others to ours and, with `to-` before it, back."""

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from meshwright.arrays import Source, as_source, subtree
from meshwright.checkpoint import rewritten
from meshwright.cli._target import find
from meshwright.errors import UsageError
from meshwright.models import Map, hugging_face

HUGGING_FACE = "hugging-face"
TO = "to-"
STATE = "params/"


def is_back(options: argparse.Namespace) -> bool:
    """Return whether our names become those of others."""
    return (options.map or "").startswith(TO)


def is_hugging_face(options: argparse.Namespace) -> bool:
    """Return whether the map is Hugging Face's, there or back."""
    return (options.map or "").removeprefix(TO) == HUGGING_FACE


def to_ours(options: argparse.Namespace) -> Callable[[Source], Source]:
    """Return what gives arrays our names.

    Raises:
      UsageError: there is no such map.
      CheckpointError: as `hugging_face.config`.
    """
    if is_hugging_face(options):
        cfg = hugging_face.config(options.config or options.source)
        return lambda source: _under("params", hugging_face.to_ours(source, cfg))
    names = _named(options.map)
    return lambda source: _all_to_ours(names, source)


def to_theirs(options: argparse.Namespace, **chosen: Any) -> Callable[[Source], Source]:
    """Return what gives arrays the names of others: those of a state that are parameters, and `chosen`.

    Those of Hugging Face keep ours until they are exported, and so compared with `config.json`.

    Raises:
      UsageError: there is no such map.
    """
    if is_hugging_face(options):
        return lambda source: rewritten(_parameters(source), **chosen)
    names = _named(options.map.removeprefix(TO))
    part = _whole if _is_of_state(names) else _parameters
    return lambda source: names.to_theirs(rewritten(part(source), **chosen))


def _parameters(source: Source) -> Source:
    """Return the parameters, where a source is of a run's state, by names without `params/`."""
    is_state = any(name.startswith(STATE) for name in source.arrays())
    return subtree(source, STATE.rstrip("/")) if is_state else source


def _whole(source: Source) -> Source:
    return source


def _all_to_ours(names: Map, source: Source) -> Source:
    """Return all arrays with our names, which are below `params` if the map does not say so itself."""
    ours = names.to_ours(source)
    names.to_theirs(ours)  # which refuses what has no row; nothing is read
    return ours if _is_of_state(names) else _under("params", ours)


def _is_of_state(names: Map) -> bool:
    return any(name.startswith(STATE) for row in names.rows for name in row.names)


def _under(prefix: str, source: Source) -> Source:
    return as_source({f"{prefix}/{name}": array for name, array in source.arrays().items()}, str(source))


def _named(target: str) -> Map:
    """Return a map of the user's own, `module:name`, or what a function of that name returns."""
    if ":" not in target:
        raise UsageError(
            f"--map {target!r} is unknown. Write {HUGGING_FACE}, or module:map for a mw.models.Map of your "
            f"own; with {TO} in front it converts back: {TO}{HUGGING_FACE}."
        )
    found = find(target, "map", "NAMES", lambda value: isinstance(value, Map) or inspect.isroutine(value))
    if isinstance(found, Map):
        return found
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise UsageError(f"--map {target} is a function that must take no arguments: {error}.") from None
    made = found()
    if not isinstance(made, Map):
        raise UsageError(
            f"--map {target} must return a mw.models.Map, and returned a value of type {type(made).__name__}."
        )
    return made
