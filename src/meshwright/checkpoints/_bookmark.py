"""The position of the data iterator, saved in a checkpoint's `extra` in one of three forms.

    "data": {"samples": 51200, …}              a state that is valid on any number of processes, or null
    "data_by_process": [{"next": 7}, …]        the states of iterators that each know their own share only
    "data": "not saved"                        left out on purpose: a resumed run starts the data again

The iterator chooses the form: those of `mw.data`, and others with `state_is_global = True`, use the first.
Equal states on all processes would not prove it: two iterators that each read one half may both stand at
100, where one that reads everything stands at 200.

Bytes, as grain's loaders return them, are saved as {"base64": …}.
"""

import base64
import json
import logging
from collections.abc import Mapping
from typing import Any

import jax

from meshwright.errors import CheckpointError, UsageError
from meshwright.processes import _internal as processes

_GLOBAL, _BY_PROCESS = "data", "data_by_process"
_NOT_SAVED = "not saved"
log = logging.getLogger("meshwright")

_OTHERWISE = "To continue anyway, use `restore(open_source(...), target)` and set the data yourself."


def bookmark(data: Any) -> dict[str, Any]:
    """Return the position of `data` in the form that `rewind` reads. Collective, unless the state is
    global.
    """
    if data is None:
        return {_GLOBAL: _NOT_SAVED}
    if not hasattr(data, "get_state"):
        return {_GLOBAL: None}
    if getattr(data, "state_is_global", False):
        return {_GLOBAL: _saveable(data)}
    return {_BY_PROCESS: processes.gather(_saveable(data))}


def rewind(data: Any, extra: Mapping[str, Any], source: Any) -> None:
    """Set `data` to its position when the checkpoint `source`, with this `extra`, was saved. Ignores None."""
    if data is None:
        return
    state, states = extra.get(_GLOBAL), extra.get(_BY_PROCESS)
    if state == _NOT_SAVED:
        log.warning("%s was saved without the position of the data: the data start again", source)
        return
    is_known, can_rewind = state is not None or states is not None, hasattr(data, "set_state")
    if is_known and not can_rewind:
        raise CheckpointError(
            f"{source} has the position of the data, but {type(data).__name__} has no `set_state` to restore "
            f"it. {_OTHERWISE}"
        )
    if can_rewind and not is_known:
        raise CheckpointError(
            f"{source} does not have the position of the data, so the data would start again. {_OTHERWISE}"
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
            f"cannot save the position of the data: {type(data).__name__}.get_state() must return bytes or "
            f"JSON ({error})."
        ) from None
    return state


def _as_given(state: Any) -> Any:
    is_encoded = isinstance(state, dict) and state.keys() == {"base64"}
    return base64.b64decode(state["base64"]) if is_encoded else state


def _mine(states: list[Any], source: Any) -> Any:
    if len(states) != jax.process_count():
        raise CheckpointError(
            f"{source} has the positions of the data on {len(states)} processes, but this run has "
            f"{jax.process_count()}. Run as many, or use data whose state is valid on any number "
            f"(`state_is_global = True`). {_OTHERWISE}"
        )
    return states[jax.process_index()]
