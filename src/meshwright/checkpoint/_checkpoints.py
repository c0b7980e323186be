"""A directory of checkpoints, held open by one run."""

import copy
import logging
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self, TypeVar

import jax

from meshwright import tree
from meshwright.arrays import Casts, Names
from meshwright.checkpoint import _directory
from meshwright.checkpoint._bookmark import bookmark, rewind
from meshwright.checkpoint._format import HOST_NBYTES, Manifest, layouts
from meshwright.checkpoint._resume import newest_intact, pass_over
from meshwright.checkpoint._retention import Keep
from meshwright.checkpoint._saved import Saved
from meshwright.checkpoint._saving import begin_attempt, start_saving, writer_of
from meshwright.checkpoint._scores import numbers
from meshwright.checkpoint._session import Session
from meshwright.errors import MeshwrightError
from meshwright.process import on_lead
from meshwright.storage import Directory
from meshwright.when import Due, Scores, Tick, When

log = logging.getLogger("meshwright")

SaveWhenDue = Callable[[Tick, tree.PyTree, Any, Scores | None], None]
T = TypeVar("T")


class Checkpoints(Saved):
    """Saves behind the training loop, and finds again what was saved.

    A context manager: while it is open no other run may save in the same directory, and leaving it
    waits for the save in flight. (An object store cannot be locked: there, of two runs that save one
    step, one wins and the other is told.) `save`, `wait`, `resume`, and entering and leaving are collective:
    all processes call them, on the main thread, in one order.
    """

    before_commit: Callable[[], None] = staticmethod(lambda: None)
    """Called by a thread of process 0 when all of a checkpoint is written and it does not count yet: for what
    must never be behind the checkpoints. May be set at any time."""
    check_state: Callable[[int, tree.PyTree], None] = staticmethod(lambda step, state: None)
    """Called with a step and its state before these are saved, and when `resume` has restored them: what it
    raises keeps them from being saved, or gone on from. May be set at any time: `mw.train.check_finite`."""
    resumed: int | None = None
    """The step that `resume` continued from; None if it started afresh."""
    passed_over: tuple[str, ...] = ()
    """What `resume` says of newer checkpoints that are damaged, to be shown to people."""

    def __init__(
        self,
        directory: str | Directory,
        *,
        keep: int | Keep = 2,
        cast: Casts = (),
        names: Names | None = None,
        host_nbytes: int = HOST_NBYTES,
    ):
        """Take what is in `directory`.

        Args:
          directory: All processes can see it. It may be in an object store: `s3://bucket/run`.
          keep: A number, of the newest, or a policy. The newest and those that are pinned stay in any case.
          cast: The dtypes that arrays are saved in, as of `cast`, the function; `resume` casts them back.
          names: It returns the name that a leaf is saved by, or None, which leaves it out. `resume` takes the
            names back, and what was left out from its `otherwise()`.
          host_nbytes: The bytes that each process may hold of a save in copies on the host which are not
            written yet, or one shard, where that is larger. Of a larger state, `save` waits for writing. On
            CPU nothing is copied but NumPy arrays.

        Raises:
          UsageError: `directory` is no place for checkpoints, or `keep` neither a number nor a policy.
        """
        super().__init__(directory, keep, cast, names)
        self._host_nbytes = host_nbytes
        self._session = Session(self.directory)

    def __repr__(self) -> str:
        is_open = "open" if self._session.is_open else "not open"
        return f"Checkpoints({str(self.directory)!r}, {is_open} for saving)"

    def __enter__(self) -> Self:
        """Open the directory for saving, made where it is not, and remove what killed runs left in it.

        Raises:
          UsageError: Another run has it open, or it cannot be used by some process.
        """
        self._session.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Wait for the save in flight; after an error, which others may not share, for this process only."""
        self._session.leave(error)

    def settled(self) -> int | None:
        """Wait for the save in flight, whether it fails or not, and return `latest()`. Collective."""
        try:
            self.wait()
        except MeshwrightError as failure:
            log.error(str(failure))
        return self.latest()

    def save(self, step: int, state: tree.PyTree, extra: Mapping[str, Any] | None = None) -> None:
        """Save `state`, and process 0's `extra`, which is whatever JSON can hold.

        Returns as soon as this process's shards are on the host: `state` may then be donated or
        changed. The rest happens on a thread; `wait` or the next `save` tell how it went. A step
        that has a complete checkpoint is not saved again; what else stands in its place is set aside.

        Raises:
          MeshwrightError: The previous save failed on some process, as `wait` says.
          UsageError: A leaf of `state`, or `extra`, is not of a kind that can be saved.
        """
        self.wait()
        thread, host_nbytes = self._session.thread, self._host_nbytes
        self.check_state(step, state)
        step, (leaves, impls) = operator.index(step), self._leaves(state)
        arrays = layouts(leaves, jax.process_count())
        attempt = on_lead(lambda: begin_attempt(self.directory, step, extra))
        if attempt is None:
            return
        head = Manifest(step, writer_of(leaves), copy.deepcopy(dict(extra or {})), prng_keys=impls)
        temporary = self.directory / attempt
        remove = partial(self._remove_old, just_saved=step)
        self._session.saving = start_saving(
            thread, leaves, arrays, head, temporary, host_nbytes, first=self.before_commit, then=remove
        )

    def wait(self) -> None:
        """Return when the save in flight, if any, is complete.

        Raises:
          MeshwrightError: It failed on some process. It left no checkpoint, if the message does not
            say that it did: then it is older ones that could not be removed.
        """
        self._session.wait()

    def saver(self, when: When) -> SaveWhenDue:
        """Return the training loop's `save`: it saves when due and after the last step."""
        due = Due(when)

        def save(tick: Tick, state: tree.PyTree, data: Any, scores: Scores | None) -> None:
            if due(tick):
                self.save(tick.step, state, {**bookmark(data), "scores": numbers(scores or {})})

        return save

    def resume(self, target: T, data: Any, *, otherwise: Callable[[], T]) -> T:
        """Return the newest intact checkpoint, restored into `target`, and set `data` to where it stood then.

        Without a checkpoint, returns `otherwise()`; of that is also what `names` leaves out. `resumed` says
        afterwards which it was. A newer one that is damaged is logged as an error, told of in `passed_over`
        and, where the directory is open for saving, set aside as `step_00000800.damaged-…`.

        Raises:
          CheckpointError: The checkpoint does not fit `target` or `data`.
          DamagedError: There are checkpoints, and none is intact.
        """
        self.wait()
        self.resumed, self.passed_over = None, ()
        steps = on_lead(lambda: _directory.complete_steps(self.directory))
        if not steps:
            return otherwise()
        fresh = self._not_saved(target, otherwise)
        (source, finish), damaged = newest_intact(steps, lambda step: self._read(step, target, fresh))
        state = finish()
        self.check_state(source.step, state)
        rewind(data, source.extra, source)
        self.resumed = source.step
        self.passed_over = pass_over(self.directory, damaged, source.step, self._session.is_open)
        return state
