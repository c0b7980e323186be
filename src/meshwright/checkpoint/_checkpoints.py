"""A directory of checkpoints, held open by one run."""

import copy
import logging
import operator
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import jax

from meshwright import process, tree
from meshwright.arrays import (
    Casts,
    Names,
    cast_back,
    cast_dtypes,
    cast_leaves,
    keys_as_data,
    left_out,
    named_back,
    read_for,
    renamed,
)
from meshwright.checkpoint import _directory
from meshwright.checkpoint._attempt import begin_attempt
from meshwright.checkpoint._bookmark import bookmark, rewind
from meshwright.checkpoint._format import HOST_NBYTES, Manifest, NativeSource, layouts
from meshwright.checkpoint._resume import made_anew, newest_intact
from meshwright.checkpoint._retention import Keep, Scores, as_policy
from meshwright.checkpoint._saving import Saving, start_saving, writer_of
from meshwright.checkpoint._scores import numbers, remove_old, saved_scores
from meshwright.errors import MeshwrightError, UsageError
from meshwright.process import on_lead, together
from meshwright.storage import Directory, location
from meshwright.when import Due, Tick, When

log = logging.getLogger("meshwright")

Save = Callable[[Tick, tree.PyTree, Any, Scores | None], None]
T = TypeVar("T")


class Checkpoints:
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
    raises keeps them from being saved, or gone on from. May be set at any time; see `mw.train.check_finite`."""
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
        self.directory = _directory.of_checkpoints(location(directory))
        self.keep = keep
        self._cast, self._names = cast, names
        self._host_nbytes = host_nbytes
        self._scores: dict[int, Scores] = {}
        self._lock: ExitStack | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._saving: Saving | None = None

    def __repr__(self) -> str:
        return f"Checkpoints({str(self.directory)!r}, {'open' if self._thread else 'not open'} for saving)"

    def __enter__(self) -> Self:
        """Open the directory for saving, made where it is not, and remove what killed runs left in it.

        Raises:
          UsageError: Another run has it open, or it cannot be used by some process.
        """
        try:
            on_lead(self._take)
            together(lambda: _directory.probe(self.directory))
            on_lead(lambda: _directory.remove_temporaries(self.directory))
            self._thread = ThreadPoolExecutor(1, "checkpoint")
        except BaseException:
            self._close()
            raise
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

    @property
    def keep(self) -> Keep:
        """What says which checkpoints stay. May be set at any time, and is asked after each save."""
        return self._keep

    @keep.setter
    def keep(self, keep: int | Keep) -> None:
        self._keep = as_policy(keep)

    def check(self, target: tree.PyTree) -> None:
        """Raise now what `save` would say of `cast` and `names` of `target`, a state, which may be abstract.

        Raises:
          UsageError: A pattern casts nothing, or there is no such dtype; nothing is saved, or two leaves
            would have one name.
        """
        leaves = tree.named_leaves(target)
        cast_dtypes(leaves, self._cast)
        renamed(leaves, self._names)

    def left_out(self, target: tree.PyTree) -> set[str]:
        """Return the names of the leaves of a state like `target` that are not saved.

        Raises:
          UsageError: Of none it is said that it is saved, or two would have one name.
        """
        return left_out(target, self._names)

    def latest(self) -> int | None:
        """Return the highest step of which there is a complete checkpoint. Not collective."""
        return max(_directory.complete_steps(self.directory), default=None)

    def settled(self) -> int | None:
        """Return `latest()`, which a restart takes, when the save in flight has ended, well or not.

        Collective.
        """
        try:
            self.wait()
        except MeshwrightError as failure:
            log.error(str(failure))
        return self.latest()

    def scores(self) -> Scores:
        """Return the scores that were saved with the latest checkpoint. Not collective."""
        latest = self.latest()
        return {} if latest is None else self.scores_by_step().get(latest, {})

    def scores_by_step(self) -> dict[int, Scores]:
        """Return the scores saved with each complete checkpoint that can be read. Not collective."""
        found = saved_scores(self.directory, self._scores)
        self._scores = found  # when it is complete: the thread and the main thread both come here
        return found

    def source(self, step: int) -> NativeSource:
        """Return the checkpoint of `step`, to `restore` from."""
        return NativeSource(_directory.step_path(self.directory, step))

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
        if self._thread is None:
            raise UsageError("open the directory first: `with Checkpoints(...) as checkpoints:`.")
        self.check_state(step, state)
        step, leaves = operator.index(step), cast_leaves(tree.named_leaves(state), self._cast)
        leaves, impls = keys_as_data(renamed(leaves, self._names))
        arrays = layouts(leaves, jax.process_count())
        attempt = on_lead(lambda: begin_attempt(self.directory, step, extra))
        if attempt is not None:
            head = Manifest(step, writer_of(leaves), copy.deepcopy(dict(extra or {})), prng_keys=impls)
            self._saving = start_saving(
                self._thread,
                leaves,
                arrays,
                head,
                self.directory / attempt,
                self._host_nbytes,
                first=self.before_commit,
                then=lambda: remove_old(self.directory, self.scores_by_step, self.keep, just_saved=step),
            )

    def wait(self) -> None:
        """Return when the save in flight, if any, is complete.

        Raises:
          MeshwrightError: It failed on some process. It left no checkpoint, if the message does not
            say that it did: then it is older ones that could not be removed.
        """
        if saving := self._saving:
            failure = saving.finish()  # if that is interrupted, the save is still in flight
            self._saving = None
            if failure:
                raise MeshwrightError(
                    f"the save of step {saving.step} failed:\n  {failure}"
                ) from saving.error()

    def saver(self, when: When) -> Save:
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
        fresh = made_anew(self.left_out(target), otherwise)
        (source, finish), damaged = newest_intact(steps, lambda step: self._read(step, target, fresh))
        state = finish()
        self.check_state(source.step, state)
        rewind(data, source.extra, source)
        self.resumed = source.step
        self.passed_over = tuple(self._pass_over(step, what) for step, what in damaged.items())
        return state

    def _take(self) -> None:
        self._lock = _directory.lock(self.directory)

    def _read(self, step: int, target: T, fresh: tree.PyTree) -> tuple[NativeSource, Callable[[], T]]:
        source = self.source(step)
        named = cast_back(named_back(source, self._names, target), self._cast, target)
        return source, read_for(named, target, fallback=fresh or None)

    def _pass_over(self, step: int, what: str) -> str:
        """Set aside a damaged checkpoint, if we may, and return the message about it."""
        said = f"step {step} is damaged; continuing from step {self.resumed} instead. {what}"
        if self._thread:
            aside = on_lead(lambda: _directory.set_aside(self.directory, step))
            said += f" It is kept as {aside}."
        if process.is_lead():
            log.error(said)
        return said

    def _close(self) -> None:
        try:
            if self._thread:
                self._thread.shutdown()
        finally:  # for who gives that up: what then still writes into a directory of its own harms nobody
            if self._lock:
                self._lock.close()
            self._thread = self._lock = self._saving = None
