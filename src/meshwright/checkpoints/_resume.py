"""Resuming: the newest intact checkpoint, the same on all processes, and the position of the data iterator.

The position is saved in a checkpoint's `extra` in one of three forms.

    "data": {"samples": 51200, …}              a state that is valid on any number of processes, or null
    "data_by_process": [{"next": 7}, …]        the states of iterators that each know their own share only
    "data": "not saved"                        left out on purpose: a resumed run starts the data again

The iterator chooses the form: those of `mw.data`, and others with `state_is_global = True`, use the first.
Equal states on all processes would not prove it: two iterators that each read one half may both be at
position 100, where one that reads everything is at 200.

Bytes, as grain's loaders return them, are saved as {"base64": …}.
"""

import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax

from meshwright.base._internal import Directory, ObjectPath
from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._manifest import MANIFEST
from meshwright.errors import CheckpointError, DamagedError, UsageError, listed
from meshwright.processes import _internal as processes
from meshwright.processes._internal import on_all, on_lead

log = logging.getLogger("meshwright")

T = TypeVar("T")


class Candidate(NamedTuple):
    """A checkpoint to resume from. Of two of one step, that in memory is greater, as it is read faster."""

    step: int
    is_in_memory: bool = False

    def __str__(self) -> str:
        return f"step {self.step}{' in memory' if self.is_in_memory else ''}"


def newest_intact(
    candidates: Sequence[Candidate], restore: Callable[[Candidate], T]
) -> tuple[T | None, Candidate | None, dict[Candidate, str]]:
    """Return `restore(candidate)` of the newest intact one, this candidate, and the errors of newer ones.

    Without candidates, or if all are damaged and only in memory, the first two are None: the run is then as
    if it had saved nothing. Checkpoints on a disk are not given up like this.
    Processes read different parts, so damage that one of them finds makes all of them take an older one.
    Collective: call it on the main thread of all processes, with the same candidates.
    """
    damaged: dict[Candidate, str] = {}
    # The newest first; of two of one step, that in memory.
    for candidate in sorted(candidates, reverse=True):
        try:
            # Damage that one process finds is raised on all of them.
            return on_all(partial(restore, candidate)), candidate, damaged
        except DamagedError as error:
            damaged[candidate] = str(error)
    # Memory is lost with a host anyway, so the run starts again instead of ending.
    if all(candidate.is_in_memory for candidate in damaged):
        return None, None, damaged
    raise DamagedError(
        "all checkpoints are damaged, so there is none to continue from:\n  "
        + "\n  ".join(f"{candidate}: {problem}" for candidate, problem in damaged.items())
        + "\nRestore one from a backup; or, to start from the beginning, move them away."
    )


def set_aside_damaged(
    directory: Directory, damaged: Mapping[Candidate, str], resumed: Candidate | None, is_open: bool
) -> tuple[str, ...]:
    """Log damaged checkpoints, set those on disk aside if `is_open`, and return the messages. Collective."""
    messages = []
    for candidate, problem in damaged.items():
        message = f"{candidate} is damaged; {_instead(resumed)} instead. {problem}"
        if is_open and not candidate.is_in_memory:
            message += f" It is kept as {on_lead(partial(_directory.set_aside, directory, candidate.step))}."
        messages.append(message)
    _log_on_lead(messages)
    return tuple(messages)


def log_incomplete(incomplete: Mapping[int, str], resumed: Candidate | None) -> tuple[str, ...]:
    """Log the newer checkpoints in memory that some process lacks, and return the messages."""
    newer = [step for step in sorted(incomplete) if resumed is None or step > resumed.step]
    messages = tuple(
        f"step {step} in memory is not complete: {incomplete[step]}; {_instead(resumed)}" for step in newer
    )
    _log_on_lead(messages)
    return messages


def log_uncommitted(directory: Directory, resumed: Candidate | None) -> None:
    """Log which newer steps in a store have files, but no manifest. Collective.

    Only on a disk this shows damage: a save that is killed leaves them under the name of the step.
    """

    def log_newer() -> None:
        begun = _directory.temporaries(directory) if isinstance(directory, ObjectPath) else []
        newest = "" if resumed is None else _directory.step_name(resumed.step)
        if newer := [path.name for path in begun if path.name > newest]:
            log.warning(
                f"{listed(newer)} in {directory} have files but no {MANIFEST}: either their saves did not "
                f"end, or the manifests were removed. {_instead(resumed)} instead."
            )

    on_lead(log_newer)


def _instead(resumed: Candidate | None) -> str:
    return f"continuing from {resumed}" if resumed else "starting from the beginning"


def _log_on_lead(messages: Sequence[str]) -> None:
    """Log messages about checkpoints that were passed over, on process 0."""
    if processes.is_lead():
        for message in messages:
            log.error(message)


_GLOBAL, _BY_PROCESS = "data", "data_by_process"
_NOT_SAVED = "not saved"

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
