"""A directory of checkpoints, held open by one run."""

import copy
import json
import operator
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import jax
from jax.sharding import NamedSharding

from meshwright import __version__, process, tree
from meshwright.checkpoint import _directory
from meshwright.checkpoint._format import (
    HOST_NBYTES,
    MANIFEST,
    Manifest,
    NativeSource,
    layouts,
    read_manifest,
)
from meshwright.checkpoint._lead import on_lead
from meshwright.checkpoint._restore import restore
from meshwright.checkpoint._retention import Keep, Scores, last
from meshwright.checkpoint._saving import Saving, start_saving
from meshwright.errors import CheckpointError, MeshwrightError, UsageError
from meshwright.when import Due, Tick, When

Save = Callable[[Tick, tree.PyTree, Any, Scores | None], None]


class Checkpoints:
    """Saves behind the training loop, and finds again what was saved.

    A context manager: while it is open no other run may save in the same directory, and leaving it
    waits for the save in flight. `save`, `wait`, `resume`, and entering and leaving are collective:
    all processes call them, on the main thread, in one order.
    """

    resumed: int | None = None
    """The step that `resume` continued from; None if it started afresh."""

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: Keep = last(2),  # noqa: B008 - a pure function
        host_nbytes: int = HOST_NBYTES,
    ):
        """Take what is in `directory`, where all processes can see it; `keep` says what stays there.

        Of a save, each process holds at most `host_nbytes` in copies on the host that are not written
        yet (or one shard, where that is larger): of a larger state, `save` waits for writing. On CPU
        nothing is copied but NumPy arrays.
        """
        self._host_nbytes = host_nbytes
        self.directory = _directory.local_directory(directory)
        self._keep = keep
        self._scores: dict[int, Scores] = {}
        self._lock: TextIO | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._saving: Saving | None = None

    def __enter__(self) -> Self:
        """Open the directory for saving, made where it is not, and remove what killed runs left in it.

        Raises:
          UsageError: Another run has it open.
        """
        try:
            on_lead(self._open)
        except BaseException:
            self._close()
            raise
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the save in flight; after an error, which others may not share, for this process only."""
        try:
            if error is None:
                self.wait()
            elif self._saving and (failure := self._saving.join()):
                error.add_note(f"The save of step {self._saving.step} failed, too: {failure}")
        finally:
            self._close()

    def latest(self) -> int | None:
        """Return the highest step of which there is a complete checkpoint. Not collective."""
        return max(_directory.complete_steps(self.directory), default=None)

    def save(self, step: int, state: tree.PyTree, extra: Mapping[str, Any] | None = None) -> None:
        """Save `state`, and process 0's `extra`, which is whatever JSON can hold.

        Returns as soon as this process's shards are on the host: `state` may then be donated or
        changed. The rest happens on a thread; `wait` or the next `save` tell how it went. A step
        that has a complete checkpoint is not saved again.

        Raises:
          MeshwrightError: The previous save failed on some process, as `wait` says.
          UsageError: A leaf of `state`, or `extra`, is not of a kind that can be saved.
        """
        self.wait()
        if self._thread is None:
            raise UsageError("open the directory first: `with Checkpoints(...) as checkpoints:`.")
        step, leaves = operator.index(step), tree.named_leaves(state)
        arrays = layouts(leaves, jax.process_count())
        attempt = on_lead(lambda: self._begin(step, extra))
        if attempt is not None:
            head = Manifest(step, _writer(leaves), copy.deepcopy(dict(extra or {})))
            self._saving = start_saving(
                self._thread,
                leaves,
                arrays,
                head,
                self.directory / attempt,
                self._host_nbytes,
                lambda: self._remove_old(step),
            )

    def wait(self) -> None:
        """Return when the save in flight, if any, is complete.

        Raises:
          MeshwrightError: It failed on some process. It left no checkpoint, if the message does not
            say that it did: then it is older ones that could not be removed.
        """
        saving, self._saving = self._saving, None
        if saving:
            saving.finish()

    def saver(self, when: When) -> Save:
        """Return the training loop's `save`: it saves when due and after the last step."""
        due = Due(when)

        def save(tick: Tick, state: tree.PyTree, data: Any, scores: Scores | None) -> None:
            if due(tick):
                bookmark = data.get_state() if hasattr(data, "get_state") else None
                self.save(tick.step, state, {"data": bookmark, "scores": dict(scores or {})})

        return save

    def resume(self, target: tree.PyTree, data: Any, *, otherwise: Callable[[], tree.PyTree]) -> tree.PyTree:
        """Return the latest checkpoint, restored into `target`, and set `data` to where it stood then.

        Without a checkpoint, returns `otherwise()`. `resumed` says afterwards which it was.

        Raises:
          CheckpointError: The checkpoint does not fit `target` or `data`, or is damaged.
        """
        self.wait()
        self.resumed = process.agree(self.latest())
        if self.resumed is None:
            return otherwise()
        source = NativeSource(_directory.step_path(self.directory, self.resumed))
        state = restore(source, target)
        _rewind(data, source)
        return state

    def _open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = _directory.lock(self.directory)
        _directory.remove_temporaries(self.directory)

    def _close(self) -> None:
        if self._thread:
            self._thread.shutdown()
        if self._lock:
            self._lock.close()
        self._thread = self._lock = self._saving = None

    def _begin(self, step: int, extra: Mapping[str, Any] | None) -> str | None:
        """Make a directory for a new attempt and return its name, or None when `step` is saved already."""
        if step < 0:
            raise UsageError(f"cannot save step {step}: steps count from 0.")
        _check_json(extra)
        final = _directory.step_path(self.directory, step)
        if (final / MANIFEST).is_file():
            return None
        if final.exists():
            raise MeshwrightError(f"{final} is in the way: it is no complete checkpoint. Move it elsewhere.")
        temporary = _directory.temporary_path(self.directory, step)
        temporary.mkdir()
        return temporary.name

    def _remove_old(self, just_saved: int) -> None:
        """Remove the checkpoints that `keep` does not keep."""
        try:
            scores = self._saved_scores()
            kept = self._keep(scores) | {just_saved, max(scores)}
            for step in sorted(scores.keys() - kept):
                _directory.remove_step(self.directory, step)
        except Exception as error:
            raise MeshwrightError(
                f"step {just_saved} is saved, but older checkpoints could not be removed: {error}"
            ) from error

    def _saved_scores(self) -> dict[int, Scores]:
        """Return the scores of the complete checkpoints, but for those that cannot be read: they stay."""
        known, self._scores = self._scores, {}
        for step in _directory.complete_steps(self.directory):
            with suppress(CheckpointError):
                self._scores[step] = known[step] if step in known else self._read_scores(step)
        return self._scores

    def _read_scores(self, step: int) -> Scores:
        return read_manifest(_directory.step_path(self.directory, step)).extra.get("scores", {})


def _check_json(extra: Mapping[str, Any] | None) -> None:
    try:
        json.dumps(extra)
    except (TypeError, ValueError) as error:
        raise UsageError(f"cannot save `extra`, as JSON cannot hold it: {error}.") from None


def _writer(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Say who writes, for the manifest."""
    shardings = [getattr(leaf, "sharding", None) for leaf in leaves.values()]
    meshes = (dict(sharding.mesh.shape) for sharding in shardings if isinstance(sharding, NamedSharding))
    return {
        "meshwright": __version__,
        "jax": jax.__version__,
        "processes": jax.process_count(),
        "mesh": next(meshes, None),
    }


def _rewind(data: Any, source: NativeSource) -> None:
    bookmark, can_rewind = source.extra.get("data"), hasattr(data, "set_state")
    if bookmark is not None and can_rewind:
        data.set_state(bookmark)
    elif can_rewind:
        raise CheckpointError(
            f"{source} does not say where the data stood, so the data would begin again. To continue all the "
            "same, use `restore(open_source(...), target)` and set the data yourself."
        )
    elif bookmark is not None:
        raise CheckpointError(
            f"{source} says where the data stood, but {type(data).__name__} has no `set_state` to be told. "
            "To continue all the same, use `restore(open_source(...), target)`."
        )
