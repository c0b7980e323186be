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
from meshwright.unknown_arguments import explained
from meshwright.when import Due, Scores, Tick, When

log = logging.getLogger("meshwright")

SaveWhenDue = Callable[[Tick, tree.PyTree, Any, Scores | None], bool]
T = TypeVar("T")


@explained
class Checkpoints(Saved):
    """A directory of checkpoints: saves states in the background of a training loop, and restores them.

    To save, use it as a context manager: no other run can then save in the directory (but in a store, without
    locks, one of two that save the same step gets an error), and leaving waits for the save in flight.
    Entering, leaving, `save`, `wait` and `resume` are collective: all processes call them in the same order.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      >>> checkpoints.latest()
      100
    """

    before_commit: Callable[[], None] = staticmethod(lambda: None)
    """Hook that runs on a thread of process 0 after all data of a checkpoint is written, before it is
    committed. May be set at any time."""
    check_state: Callable[[int, tree.PyTree], None] = staticmethod(lambda step, state: None)
    """Hook that gets a step and its state before they are saved, and after `resume` has restored them; if it
    raises, they are not used. May be set at any time, for instance to `mw.train.check_finite`."""
    resumed: int | None = None
    """The step that `resume` continued from; None if it started from the beginning."""
    passed_over: tuple[str, ...] = ()
    """Messages of `resume` about newer checkpoints that are damaged."""

    def __init__(
        self,
        directory: str | Directory,
        *,
        keep: int | Keep = 2,
        cast: Casts = (),
        names: Names | None = None,
        host_nbytes: int = HOST_NBYTES,
    ):
        """Open nothing yet; `with` opens the directory for saving.

        Args:
          directory: A directory that all processes see, or the URL of one in a store, `s3://bucket/run`.
          keep: The number of newest checkpoints to keep, or a policy of `mw.checkpoint`. The newest one and
            pinned ones are always kept.
          cast: Pairs of a pattern and a dtype to save arrays in; `resume` casts them back.
          names: Returns the saved name of a leaf, or None, which leaves it out. `resume` restores the names,
            and takes leaves that were left out from its `otherwise()`.
          host_nbytes: The most bytes of copies per process, but at least one shard; `save` of a larger state
            waits until parts are written. On CPU, only NumPy arrays are copied.

        Raises:
          UsageError: `directory` cannot hold checkpoints, or `keep` is neither a number nor a policy.
        """
        super().__init__(directory, keep, cast, names)
        self._host_nbytes = host_nbytes
        self._session = Session(self.directory)

    def __repr__(self) -> str:
        is_open = "open" if self._session.is_open else "not open"
        return f"Checkpoints({str(self.directory)!r}, {is_open} for saving)"

    def __enter__(self) -> Self:
        """Open the directory for saving, and clean up after killed runs; `UsageError` if it is open."""
        self._session.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Wait for the save in flight; after an error, only for this process's part of it."""
        self._session.leave(error)

    def settled(self) -> int | None:
        """Wait for the save in flight, log its failure if it fails, and return `latest()`. Collective."""
        try:
            self.wait()
        except MeshwrightError as failure:
            log.error(str(failure))
        return self.latest()

    def save(self, step: int, state: tree.PyTree, extra: Mapping[str, Any] | None = None) -> None:
        """Start saving a state, and return as soon as this process's shards are copied to the host.

        `state` may then be donated or changed. A thread writes the files; `wait` or the next `save` raise its
        errors. A step that has a complete checkpoint is not saved again; an incomplete one is set aside.

        Args:
          step: The step, from 0.
          state: A tree of arrays and numbers.
          extra: Further values that JSON can hold; those of process 0 are saved.

        Raises:
          MeshwrightError: The previous save failed, as in `wait`.
          UsageError: A leaf of `state`, or `extra`, cannot be saved.
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
        """Wait until the save in flight, if any, is complete.

        Raises:
          MeshwrightError: It failed on some process, or old checkpoints could not be removed.
        """
        self._session.wait()

    def saver(self, when: When) -> SaveWhenDue:
        """Return a function for `mw.fit(save=…)`, which saves when it is due and after the last step.

        It returns True if it has saved.
        """
        due = Due(when)

        def save(tick: Tick, state: tree.PyTree, data: Any, scores: Scores | None) -> bool:
            is_due = due(tick)
            if is_due:
                self.save(tick.step, state, {**bookmark(data), "scores": numbers(scores or {})})
            return is_due

        return save

    def resume(self, target: T, data: Any, *, otherwise: Callable[[], T]) -> T:
        """Return the newest intact checkpoint, restored into `target`; without any, return `otherwise()`.

        Sets `resumed` and `passed_over`. Damaged checkpoints are logged and, if the directory is open,
        renamed.

        Args:
          target: A state of arrays or structs, with the shardings that the result is to have.
          data: The data iterator, which is set to the position that it had; None for none.
          otherwise: Makes a fresh state. It also supplies the leaves that `names` leaves out.

        Raises:
          CheckpointError: The checkpoint does not fit `target` or `data`.
          DamagedError: All checkpoints are damaged.
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
