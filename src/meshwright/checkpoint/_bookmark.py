"""Where the data stood, kept in a checkpoint's `extra`.

    "data": {"samples": 51200, …}              a state that holds on any number of processes, or null
    "data_by_process": [{"next": 7}, …]        the states of iterators that know of their process's share only
    "data": "not saved"                        on purpose: who goes on from here begins with the data anew

Which of them it is, the iterator says: those of `mw.input` and others that have `state_is_global = True` are
of the first kind. States that happen to be equal are no sign of it: two that read a half each, in step, stand
both at 100, and one that reads all of it stands at 200.

Bytes, which grain's loaders give, are saved as {"base64": …}.
"""

import base64
import json
import logging
from collections.abc import Mapping
from typing import Any

import jax

from meshwright import process
from meshwright.errors import CheckpointError, UsageError

_GLOBAL, _BY_PROCESS = "data", "data_by_process"
_NOT_SAVED = "not saved"
log = logging.getLogger("meshwright")

_OTHERWISE = "To continue all the same, use `restore(open_source(...), target)` and set the data yourself."


def bookmark(data: Any) -> dict[str, Any]:
    """Return what to save so that `rewind` finds its place again. Collective, unless the state is global.

    Raises:
      UsageError: The state is not of a kind that can be saved.
    """
    if data is None:
        return {_GLOBAL: _NOT_SAVED}
    if not hasattr(data, "get_state"):
        return {_GLOBAL: None}
    if getattr(data, "state_is_global", False):
        return {_GLOBAL: _saveable(data)}
    return {_BY_PROCESS: process.gather(_saveable(data))}


def rewind(data: Any, extra: Mapping[str, Any], source: Any) -> None:
    """Set `data` to where it stood when `source`, whose `extra` is given, was saved; None is left alone.

    Raises:
      CheckpointError: One of them knows of no place, or the place is that of another number of processes.
    """
    if data is None:
        return
    state, states = extra.get(_GLOBAL), extra.get(_BY_PROCESS)
    if state == _NOT_SAVED:
        log.warning("%s was saved without where the data stood: they begin anew", source)
        return
    is_known, can_rewind = state is not None or states is not None, hasattr(data, "set_state")
    if is_known and not can_rewind:
        raise CheckpointError(
            f"{source} says where the data stood, but {type(data).__name__} has no `set_state` to be told. "
            + _OTHERWISE
        )
    if can_rewind and not is_known:
        raise CheckpointError(
            f"{source} does not say where the data stood, so the data would begin again. {_OTHERWISE}"
        )
    if can_rewind:
        data.set_state(_as_given(state if states is None else _mine(states, source)))


def _saveable(data: Any) -> Any:
    state = data.get_state()
    if isinstance(state, bytes):
        return {"base64": base64.b64encode(state).decode()}
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"cannot save where the data stands: what {type(data).__name__}.get_state() gives is neither "
            f"bytes nor what JSON can hold ({error})."
        ) from None
    return state


def _as_given(state: Any) -> Any:
    is_encoded = isinstance(state, dict) and state.keys() == {"base64"}
    return base64.b64decode(state["base64"]) if is_encoded else state


def _mine(states: list[Any], source: Any) -> Any:
    if len(states) != jax.process_count():
        raise CheckpointError(
            f"{source} says where the data stood on each of {len(states)} processes, and this run has "
            f"{jax.process_count()}. Run as many, or use data whose state holds on any number and that says "
            f"so by `state_is_global = True`. {_OTHERWISE}"
        )
    return states[jax.process_index()]
