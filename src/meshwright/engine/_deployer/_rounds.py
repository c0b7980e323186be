"""Rounds of training on data that depend on the state, as in reinforcement learning and self-training.

After a restart, a finished call of `fit` cannot simply be skipped, because its state made the data of the
next call. So progress is counted in rounds. The end of a round saves all trainers, the stream of keys and the
carry (a replay buffer, an environment, random state) together. An interrupted round is repeated.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from weakref import ref

import jax
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.checkpoints._internal import (
    Checkpoints,
    LazyArray,
    as_source,
    in_memory,
    keys_as_data,
    restore,
    restore_lazily,
    subtree,
)
from meshwright.engine._deployer._checkpoints import Randomness
from meshwright.engine._deployer._workdir import Workdir
from meshwright.engine._open_run import OpenRunDirectory
from meshwright.errors import CheckpointError, UsageError
from meshwright.processes import _internal as processes

FOLDER = "rounds"


class Member(Protocol):
    """The parts of a trainer that rounds use."""

    @property
    def name(self) -> str:
        """Return its name among the trainers of a deployer."""
        ...

    @property
    def state(self) -> PyTree:
        """Return its training state."""
        ...

    @property
    def step(self) -> int:
        """Return the number of updates that it has made."""
        ...

    def begin_from(self, read: Callable[[PyTree], PyTree], step: int) -> None:
        """Resume from a saved state of `step` updates. `read` returns it, given the structs of the state."""
        ...


@dataclass
class Round:
    """A round of the loop over rounds."""

    number: int
    """The number of the round, from 1, over all loops of the program."""
    carry: PyTree
    """The carry of the round before. Set it to the carry for the next round."""


class Loops:
    """The loops over rounds that a program makes, and the trainers that take part in them."""

    def __init__(self, directory: Workdir, randomness: Randomness, tell: Callable[[str], None]):
        self._workdir, self.randomness, self.tell = directory, randomness, tell
        self._trainers: list[ref[Member]] = []
        self._newest: Callable[[], Generator[Round, None, None] | None] = lambda: None
        self.num_finished = 0
        """The number of finished or skipped rounds, over all loops of this program."""
        self.is_in_round = False
        """True inside a round."""
        self.first_carry: PyTree = None
        """The carry that a restart begins with, as structs: that of the first loop of this program."""
        self.was_cut_off = False
        """True if the newest loop ended in the middle of a round, for example by an error."""
        self._open_runs: dict[str, OpenRunDirectory] = {}

    def join(self, trainer: Member) -> None:
        """Add a trainer to the rounds, for as long as it exists."""
        self._trainers.append(ref(trainer))

    def rounds(self, num_rounds: int, carry: PyTree = None) -> "Rounds":
        """Return rounds to iterate over, for training on data that the state makes. Collective.

            for each in deployer.rounds(100, carry=buffer):
                each.carry = sample(actor.params, each.carry)
                actor.fit(each.carry, batch_size=64, epochs=1)

        With a workdir, the end of each round saves all trainers of the deployer, its stream of keys and the
        carry together. After a restart the finished rounds are skipped, and the results have the same bits.
        Inside a round `fit` saves no checkpoints itself. A second loop in the same program makes more rounds.

        Args:
          num_rounds: The number of rounds of this loop.
          carry: The carry of the first round: a pytree of arrays and numbers. Later ones have the same names,
            shapes and dtypes, but NumPy arrays may change their shape. Without a workdir it may be any value.

        Raises:
          UsageError: `num_rounds` is not a whole number of at least 1.
        """
        if not isinstance(num_rounds, int) or num_rounds < 1:
            raise UsageError(f"rounds({num_rounds!r}): num_rounds must be a whole number of at least 1.")
        return Rounds(self, num_rounds, carry)

    def open(self, rounds: Generator[Round, None, None]) -> Generator[Round, None, None]:
        """Return a loop's rounds, after closing those of the loop before, which an error may have left open.

        Only a weak reference is kept here. An error's traceback may keep the rounds, and with them their
        directory, open.
        """
        if (previous := self._newest()) is not None:
            previous.close()
        self._newest = ref(rounds)
        return rounds

    def open_run(self, directory: str | None) -> OpenRunDirectory | None:
        """Return the object that keeps a run directory open until the loop ends; None outside of a round."""
        if directory is None or not self.is_in_round:
            return None
        return self._open_runs.setdefault(directory, OpenRunDirectory())

    def refresh(self) -> None:
        """Write the report pages of the run directories again, if they are not recent."""
        for run in self._open_runs.values():
            run.refresh()

    def close_runs(self) -> None:
        """Close the run directories that are open."""
        with contextlib.ExitStack() as closing:
            while self._open_runs:
                closing.callback(self._open_runs.popitem()[1].close)

    def directory(self) -> Path | None:
        """Return the directory in which rounds are saved; None without a workdir.

        Raises:
          UsageError: The processes do not share the workdir.
        """
        return None if self._workdir.path is None else self._workdir.shared_for("rounds") / FOLDER

    def members(self) -> Mapping[str, Member]:
        """Return the trainers that still exist, by name.

        Raises:
          UsageError: Two trainers have the same name.
        """
        members: dict[str, Member] = {}
        for reference in self._trainers:
            if (member := reference()) is None:
                continue
            if member.name in members:
                raise UsageError(
                    f"two trainers of this deployer have the same name, {member.name!r}.\n"
                    "  Give each trainer a name of its own: Trainer(..., name='actor')."
                )
            members[member.name] = member
        return members


class Rounds:
    """An iterable over the rounds that are not finished. `carry` is the carry after the last one."""

    def __init__(self, loops: Loops, num_rounds: int, carry: PyTree):
        self.carry = carry
        self._loops, self._num_rounds = loops, num_rounds

    def __iter__(self) -> Iterator[Round]:
        """Yield each round, and save its results before the next one.

        Raises:
          UsageError: Two trainers have the same name, or the carry holds a value that cannot be saved, or
            could not be restored into the first one.
          CheckpointError: The rounds were saved with another carry or with other trainers.
        """
        return self._loops.open(self._rounds())

    def _rounds(self) -> Generator[Round, None, None]:
        loops = self._loops
        first, directory = loops.num_finished + 1, loops.directory()
        last = loops.num_finished + self._num_rounds
        if loops.num_finished:
            loops.tell(f"rounds {first} to {last}: {self._num_rounds} more")
        if directory is None:
            yield from self._run(first, last, lambda number: None)
            return
        if first == 1:
            loops.first_carry = jax.tree.map(_struct, self.carry)
        with contextlib.ExitStack() as opened:
            opened.callback(loops.close_runs)
            checkpoints = opened.enter_context(Checkpoints(directory, keep=1))
            newest = processes.on_lead(checkpoints.latest)
            if newest is not None and (first == 1 or loops.was_cut_off):
                self._resume(checkpoints, newest)
            if newest is not None and newest >= first:
                loops.tell(f"↻ rounds up to {newest} are finished")
                loops.num_finished = min(newest, last)
            yield from self._run(loops.num_finished + 1, last, partial(self._commit, checkpoints))

    def _run(self, first: int, last: int, commit: Callable[[int], None]) -> Generator[Round, None, None]:
        loops = self._loops
        for number in range(first, last + 1):
            current = Round(number, self.carry)
            loops.is_in_round = loops.was_cut_off = True
            try:
                yield current
            finally:
                loops.is_in_round = False
            self.carry = current.carry
            commit(number)
            loops.num_finished, loops.was_cut_off = number, False

    def _commit(self, checkpoints: Checkpoints, number: int) -> None:
        _check_carry(self._loops.first_carry, self.carry, number)
        members = self._loops.members()
        states = {name: member.state for name, member in members.items()}
        steps = {name: member.step for name, member in members.items()}
        saved = {"carry": self.carry, "key": self._loops.randomness.key, "trainers": states}
        checkpoints.save(number, saved, {"steps": steps})
        checkpoints.wait()
        self._loops.refresh()

    def _resume(self, checkpoints: Checkpoints, number: int) -> None:
        source, loops = checkpoints.source(number), self._loops
        steps, members = source.extra.get("steps", {}), loops.members()
        if steps.keys() != members.keys():
            raise CheckpointError(
                f"{source} has the trainers {sorted(steps)}, and this program has {sorted(members)}.\n"
                "  Make the same trainers, with the same names, or give another workdir."
            )
        saved = source.arrays()
        carry = tree.map_named(lambda name, x: _like_saved(x, saved.get(f"carry/{name}")), self.carry)
        target = {"carry": carry, "key": loops.randomness.key}
        restored = restore(source, target, ignore="^trainers/.*" if steps else None)
        self.carry, loops.randomness.key = restored["carry"], restored["key"]
        for name, member in members.items():
            of_member = subtree(source, f"trainers/{name}")
            member.begin_from(lambda target, of_member=of_member: restore(of_member, target), steps[name])


def _struct(leaf: Any) -> Any:
    """Return a leaf without its values; a number, or what cannot be saved, stays."""
    if isinstance(leaf, np.ndarray):
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    return tree.abstract(leaf) if isinstance(leaf, jax.Array) else leaf


def _check_carry(first: PyTree, carry: PyTree, number: int) -> None:
    """Check that a restart, which has the first carry, could restore this one."""
    leaves, impls = keys_as_data(tree.named_leaves(carry))
    lazy = {name: in_memory(x) for name, x in leaves.items()}
    arrays = {name: LazyArray(x.shape, x.dtype, x.read, impls.get(name)) for name, x in lazy.items()}
    saved = as_source(arrays, f"the carry after round {number}")
    try:
        restore_lazily(saved, tree.map_named(lambda name, x: _like_saved(x, arrays.get(name)), first))
    except CheckpointError as error:
        raise UsageError(
            f"{error}\n  The target is the first carry, with which a restarted program begins. Give it the "
            "names, shapes and dtypes of later ones: rounds(…, carry=…). NumPy arrays may change their shape."
        ) from None


def _like_saved(initial: Any, saved: LazyArray | None) -> Any:
    """Return the target for an array of the carry. Its shape may have changed, as a replay buffer's does."""
    if saved is None or not isinstance(initial, np.ndarray):
        return initial
    return jax.ShapeDtypeStruct(saved.shape, initial.dtype)
