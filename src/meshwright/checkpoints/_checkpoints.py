"""A directory of checkpoints, held open by one run."""

import copy
import logging
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self, TypeVar

import jax

from meshwright.base._internal import Directory, explained, tree
from meshwright.checkpoints import _directory
from meshwright.checkpoints._arrays._cast import Casts
from meshwright.checkpoints._arrays._restore import compare_source
from meshwright.checkpoints._exports import Names
from meshwright.checkpoints._format._layout import layouts
from meshwright.checkpoints._format._manifest import Manifest
from meshwright.checkpoints._format._read import NativeSource
from meshwright.checkpoints._format._snapshot import HOST_NBYTES
from meshwright.checkpoints._host_memory._budget import InMemory
from meshwright.checkpoints._host_memory._checkpoints import HostMemoryCheckpoints
from meshwright.checkpoints._host_memory._host_directory import RUN_ID
from meshwright.checkpoints._resume import (
    Candidate,
    bookmark,
    log_incomplete,
    log_uncommitted,
    newest_intact,
    rewind,
    set_aside_damaged,
)
from meshwright.checkpoints._retention import Keep
from meshwright.checkpoints._saved import Saved
from meshwright.checkpoints._saving import (
    Session,
    add_scores,
    begin_attempt,
    check_is_saved,
    start_saving,
    writer_of,
)
from meshwright.checkpoints._scores import numbers
from meshwright.errors import MeshwrightError, UsageError
from meshwright.processes._internal import Due, Scores, Tick, When, on_lead

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
    raises, they are not used. May be set at any time, for instance to `mw.training.check_finite`."""
    resumed: int | None = None
    """The step that `resume` continued from; None if it started from the beginning."""
    passed_over: tuple[str, ...] = ()
    """Messages of `resume` about newer checkpoints that are damaged or, in memory, not complete."""
    longest_save_seconds: float = 0.0
    """The longest time that a save took here, in the background too; 0 before one was waited for."""
    is_from_memory: bool = False
    """True if `resume` continued from a checkpoint in memory."""

    def __init__(
        self,
        directory: str | Directory,
        *,
        keep: int | Keep = 2,
        cast: Casts = (),
        names: Names | None = None,
        host_nbytes: int = HOST_NBYTES,
        memory: InMemory | None = None,
    ):
        """Open nothing yet; `with` opens the directory for saving.

        Args:
          directory: A directory that all processes see, or the URL of one in a store, `s3://bucket/run`.
          keep: The number of newest checkpoints to keep, or a policy of `mw.checkpoints`. The newest one and
            pinned ones are always kept.
          cast: Pairs of a pattern and a dtype to save arrays in; `resume` casts them back.
          names: Returns the saved name of a leaf, or None, which leaves it out. `resume` restores the names,
            and takes leaves that were left out from its `otherwise()`.
          host_nbytes: The most bytes of copies per process, but at least one shard; `save` of a larger state
            waits until parts are written. On CPU, only NumPy arrays are copied.
          memory: Further checkpoints in the memory of the hosts, which `saver` makes; None for none.

        Raises:
          UsageError: `directory` cannot hold checkpoints, or `keep` is neither a number nor a policy.
        """
        super().__init__(directory, keep, cast, names)
        self._host_nbytes = host_nbytes
        # What is saved without these makes a history that checkpoints in memory, if there are any, are not
        # of.
        self._session = Session(self.directory, outdated=[RUN_ID] if memory is None else [])
        self.host_memory = None if memory is None else HostMemoryCheckpoints(memory, self.directory)
        """The checkpoints in memory; None for none."""

    def __repr__(self) -> str:
        is_open = "open" if self._session.is_open else "not open"
        return f"Checkpoints({str(self.directory)!r}, {is_open} for saving)"

    def __enter__(self) -> Self:
        """Open the directory for saving, and clean up after killed runs; `UsageError` if it is open."""
        self._session.open()
        try:
            if self.host_memory:
                self.host_memory.open()
        except BaseException as error:
            self.__exit__(None, error, None)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Wait for the save in flight; after an error, only for this process's part of it."""
        try:
            self._session.leave(error, self._remove_owed)
        except BaseException as failed:
            error = failed
            raise
        finally:
            if self.host_memory:
                self.host_memory.close(error)

    def _remove_owed(self) -> None:
        if self.is_removal_owed and (latest := self.latest()) is not None:
            self._remove_old(just_saved=latest)

    def has_any(self) -> bool:
        """Return whether there is a checkpoint, on disk or in the memory of this host. Not collective."""
        return self.latest() is not None or (self.host_memory is not None and self.host_memory.has_any())

    def check_memory(self, target: tree.PyTree) -> None:
        """Check that the checkpoints in memory of a state fit into their budget. Collective.

        Args:
          target: The state, of arrays or structs.

        Raises:
          UsageError: They do not fit, on some host.
        """
        if self.host_memory:
            self.host_memory.check(self._structs(target))

    def wait_quietly(self) -> int | None:
        """Wait for the save in flight, log its failure if it fails, and return `latest()`. Collective."""
        try:
            self.wait()
        except MeshwrightError as failure:
            log.error(str(failure))
        return self.latest()

    def save(self, step: int, state: tree.PyTree, extra: Mapping[str, Any] | None = None) -> None:
        """Start saving a state, and return as soon as this process's shards are copied to the host.

        `state` may then be donated or changed. A thread writes the files; `wait` or the next `save` raise its
        errors. A step that has a complete checkpoint of the same state is not saved again, but gets further
        scores; an incomplete one is set aside.

        Args:
          step: The step, from 0.
          state: A tree of arrays and numbers.
          extra: Further values that JSON can hold; those of process 0 are saved.

        Raises:
          MeshwrightError: The previous save failed, as in `wait`.
          UsageError: A leaf of `state`, or `extra`, cannot be saved, or the step is saved with another state.
        """
        self.wait()
        # Asking for the thread raises the error for a directory that is not open, before anything is written.
        thread, host_nbytes = self._session.thread, self._host_nbytes
        self.check_state(step, state)
        step, (leaves, impls) = operator.index(step), self._leaves(state)
        arrays = layouts(leaves, jax.process_count())
        attempt = on_lead(lambda: begin_attempt(self.directory, step, extra))
        head = Manifest(step, writer_of(leaves), copy.deepcopy(dict(extra or {})), prng_keys=impls)
        if attempt is None:
            check_is_saved(self.directory, head, leaves, arrays)
            on_lead(lambda: add_scores(self.directory, step, head.scores))
            self._scores.pop(step, None)
            return
        temporary = self.directory / attempt
        # Old checkpoints are removed on the saving thread, once the new one is committed.
        remove = partial(self._remove_old, just_saved=step)
        self._session.saving = start_saving(
            thread,
            leaves,
            arrays,
            head,
            temporary,
            host_nbytes,
            before_commit=self.before_commit,
            after_commit=remove,
        )

    def wait(self) -> None:
        """Wait until the save in flight, if any, is complete.

        Raises:
          MeshwrightError: It failed on some process, or the policy did.
        """
        self.longest_save_seconds = max(self.longest_save_seconds, self._session.wait())

    def saver(self, when: When) -> SaveWhenDue:
        """Return a function for `mw.fit(save=…)`, which saves when it is due and after the last step.

        It returns True if it has saved. When it is first called, it raises a `UsageError` if there are
        checkpoints of later steps: those of another training, which `resume` would have continued.
        """
        due, is_checked = Due(when), False

        def save(tick: Tick, state: tree.PyTree, data: Any, scores: Scores | None) -> bool:
            nonlocal is_checked
            if not is_checked:
                self._check_newest(tick.step)
                is_checked = True
            is_due, in_memory = due(tick), self.host_memory is not None and self.host_memory.is_due(tick)
            if is_due or in_memory:
                extra = {**bookmark(data), "scores": numbers(scores or {})}
                if in_memory:
                    self._save_in_memory(tick.step, state, extra)
                if is_due:
                    self.save(tick.step, state, extra)
            return is_due or in_memory

        return save

    def _check_newest(self, step: int) -> None:
        in_memory = self.host_memory.steps()[0] if self.host_memory else []
        newest = max(on_lead(lambda: self.latest() or 0), *in_memory, 0)
        if newest > step:
            raise UsageError(
                f"{self.directory} has a checkpoint of step {newest}, and this training is at step {step}: "
                "it would save beside the checkpoints of another training.\n  Begin with "
                "`Checkpoints.resume`, which continues it; or give another directory, or move them away."
            )

    def _save_in_memory(self, step: int, state: tree.PyTree, extra: Mapping[str, Any]) -> None:
        assert self.host_memory is not None
        self.check_state(step, state)
        leaves, impls = self._leaves(state)
        head = Manifest(step, writer_of(leaves), copy.deepcopy(dict(extra)), prng_keys=impls)
        self.host_memory.save(leaves, head, self._host_nbytes, before_commit=self.before_commit)

    def resume(self, target: T, data: Any, *, otherwise: Callable[[], T]) -> T:
        """Return the newest intact checkpoint, restored into `target`; without any, return `otherwise()`.

        Of one in memory, each process must have its part. Sets `resumed` and `passed_over`. Damaged
        checkpoints are logged and, if the directory is open, renamed; those in memory are removed.

        Args:
          target: A state of arrays or structs, with the shardings that the result is to have.
          data: The data iterator, which is set to the position that it had; None for none.
          otherwise: Makes a fresh state. It also supplies the leaves that `names` leaves out.

        Raises:
          CheckpointError: The checkpoint does not fit `target` or `data`.
          DamagedError: All checkpoints are damaged, and not only those in memory.
        """
        self.wait()
        self.resumed, self.passed_over, self.is_from_memory = None, (), False
        steps = on_lead(lambda: list(_directory.saved_steps(self.directory)))
        in_memory, incomplete = self.host_memory.steps() if self.host_memory else ([], {})
        candidates = [*map(Candidate, steps), *(Candidate(step, True) for step in in_memory)]
        fresh = self._not_saved(target, otherwise) if candidates else {}
        restored, chosen, damaged = newest_intact(
            candidates, lambda candidate: self._read(self._candidate(candidate), target, fresh)
        )
        # Of a checkpoint in memory, each process has a part of its own.
        if restored and not (chosen and chosen.is_in_memory):
            compare_source(restored[0])
        # Only now may processes exchange arrays: all have read their parts.
        state = self._resumed(*restored, data) if restored else None
        self.passed_over = (
            *log_incomplete(incomplete, chosen),
            *set_aside_damaged(self.directory, damaged, chosen, self._session.is_open),
        )
        log_uncommitted(self.directory, chosen)
        self.is_from_memory = chosen is not None and chosen.is_in_memory
        if self.host_memory:
            self.host_memory.begin(self.resumed if self.is_from_memory else None)
        return otherwise() if state is None else state

    def _candidate(self, candidate: Candidate) -> NativeSource:
        of_step = self.host_memory.source if self.host_memory and candidate.is_in_memory else self.source
        return of_step(candidate.step)

    def _resumed(self, source: NativeSource, finish: Callable[[], T], data: Any) -> T:
        state = finish()
        self.check_state(source.step, state)
        rewind(data, source.extra, source)
        self.resumed = source.step
        return state
