"""Rounds of training on data that depend on the state, as in reinforcement learning and self-training.

A finished call of `fit` cannot just return in a process that begins anew: the data of the next one are made
by the newest state. So a round is what is finished or not. Its end commits all trainers, the stream of keys
and the carry (a replay buffer, an environment, random state) at once; a round that was cut off is made again.
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

from meshwright import process, tree
from meshwright.arrays import LazyArray, restore, subtree
from meshwright.checkpoint import Checkpoints
from meshwright.deployer._randomness import Randomness
from meshwright.deployer._workdir import Workdir
from meshwright.engine import KeptOpen
from meshwright.errors import CheckpointError, UsageError
from meshwright.tree import PyTree

FOLDER = "rounds"


class Member(Protocol):
    """A trainer, as rounds know it."""

    @property
    def name(self) -> str:
        """Return its name among the trainers of a deployer."""
        ...

    @property
    def state(self) -> PyTree:
        """Return its state of training."""
        ...

    @property
    def step(self) -> int:
        """Return how many updates it has made."""
        ...

    def begin_from(self, read: Callable[[PyTree], PyTree], step: int) -> None:
        """Go on from a state of `step` updates: `read` returns it, given one like it as structs."""
        ...


@dataclass
class Round:
    """A round of the loop over rounds."""

    number: int
    """From 1, over all loops of the program."""
    carry: PyTree
    """JSON values: what the round before left. Set it to what this one leaves."""


class Loops:
    """The loops over rounds that a program makes, and the trainers that take part in them."""

    def __init__(self, directory: Workdir, randomness: Randomness, tell: Callable[[str], None]):
        self._workdir, self.randomness, self.tell = directory, randomness, tell
        self._trainers: list[ref[Member]] = []
        self._newest: Callable[[], Generator[Round, None, None] | None] = lambda: None
        self.num_finished = 0
        """Rounds that are finished or were skipped, of all loops of this program."""
        self.is_in_round = False
        """True while a round goes on."""
        self.was_cut_off = False
        """True if the newest loop was left in the middle of a round, for example by an error."""
        self._held: dict[str, KeptOpen] = {}

    def join(self, trainer: Member) -> None:
        """Have a trainer take part, as long as it lives."""
        self._trainers.append(ref(trainer))

    def rounds(self, num_rounds: int, carry: PyTree = None) -> "Rounds":
        """Return rounds to iterate over, for training on data that are made by the state. Collective.

            for each in deployer.rounds(100, carry=buffer):
                each.carry = sample(actor.params, each.carry)
                actor.fit(each.carry, batch_size=64, epochs=1)

        With a workdir each round's end commits all trainers of the deployer, its stream of keys and the carry
        at once; a program that begins anew skips the rounds that are finished, and comes to the same bits.
        `fit` saves nothing by itself meanwhile. In one program a second loop makes more rounds.

        Args:
          num_rounds: how many this loop makes.
          carry: a pytree of arrays and numbers, given to the first round; without a workdir, anything.
        """
        if not isinstance(num_rounds, int) or num_rounds < 1:
            raise UsageError(f"rounds({num_rounds!r}): give a whole number of at least 1.")
        return Rounds(self, num_rounds, carry)

    def open(self, rounds: Generator[Round, None, None]) -> Generator[Round, None, None]:
        """Return a loop's rounds, having closed those of the loop before, which an error may have left open.

        They are held by their loop alone: what holds an error holds them, and their directory, too.
        """
        if (before := self._newest()) is not None:
            before.close()
        self._newest = ref(rounds)
        return rounds

    def held(self, place: str | None) -> KeptOpen | None:
        """Return what keeps a run directory open until the loop ends; None without one, or outside of it."""
        return None if place is None or not self.is_in_round else self._held.setdefault(place, KeptOpen())

    def refresh(self) -> None:
        """Draw the pages of the run directories anew, if that was not done lately."""
        for held in self._held.values():
            held.refresh()

    def close_runs(self) -> None:
        """Close the run directories that are held."""
        with contextlib.ExitStack() as closing:
            while self._held:
                closing.callback(self._held.popitem()[1].close)

    def directory(self) -> Path | None:
        """Return where rounds are saved; None without a workdir.

        Raises:
          UsageError: the workdir is not one for all processes.
        """
        return None if self._workdir.path is None else self._workdir.shared_for("rounds") / FOLDER

    def members(self) -> Mapping[str, Member]:
        """Return the trainers that live, by name.

        Raises:
          UsageError: two have one name.
        """
        found: dict[str, Member] = {}
        for known in self._trainers:
            if (member := known()) is None:
                continue
            if member.name in found:
                raise UsageError(
                    "two trainers of this deployer have no name, or the same one: give each its own, "
                    "Trainer(..., name='actor')."
                )
            found[member.name] = member
        return found


class Rounds:
    """An iterable of rounds, those of them that are not finished. `carry` is what the last one left."""

    def __init__(self, loops: Loops, num_rounds: int, carry: PyTree):
        self.carry = carry
        self._loops, self._num_rounds = loops, num_rounds

    def __iter__(self) -> Iterator[Round]:
        """Yield each round, and commit what it leaves when the next is asked for.

        Raises:
          UsageError: two trainers have one name, or the carry holds what cannot be saved.
          CheckpointError: the rounds were saved with another carry, or without one of the trainers.
        """
        return self._loops.open(self._rounds())

    def _rounds(self) -> Generator[Round, None, None]:
        loops = self._loops
        first, directory = loops.num_finished + 1, loops.directory()
        last = loops.num_finished + self._num_rounds
        if loops.num_finished:
            loops.tell(f"rounds {first} to {last}: {self._num_rounds} more")
        if directory is None:
            yield from self._made(first, last, lambda number: None)
            return
        with contextlib.ExitStack() as opened:
            opened.callback(loops.close_runs)
            checkpoints = opened.enter_context(Checkpoints(directory, keep=1))
            done = process.on_lead(checkpoints.latest)
            if done is not None and (first == 1 or loops.was_cut_off):
                self._go_on_from(checkpoints, done)
            if done is not None and done >= first:
                loops.tell(f"↻ rounds up to {done} are finished")
                loops.num_finished = min(done, last)
            yield from self._made(loops.num_finished + 1, last, partial(self._commit, checkpoints))

    def _made(self, first: int, last: int, commit: Callable[[int], None]) -> Generator[Round, None, None]:
        loops = self._loops
        for number in range(first, last + 1):
            made = Round(number, self.carry)
            loops.is_in_round = loops.was_cut_off = True
            try:
                yield made
            finally:
                loops.is_in_round = False
            self.carry = made.carry
            commit(number)
            loops.num_finished, loops.was_cut_off = number, False

    def _commit(self, checkpoints: Checkpoints, number: int) -> None:
        members = self._loops.members()
        states = {name: member.state for name, member in members.items()}
        steps = {name: member.step for name, member in members.items()}
        whole = {"carry": self.carry, "key": self._loops.randomness.key, "trainers": states}
        checkpoints.save(number, whole, {"steps": steps})
        checkpoints.wait()
        self._loops.refresh()

    def _go_on_from(self, checkpoints: Checkpoints, number: int) -> None:
        source, loops = checkpoints.source(number), self._loops
        steps, members = source.extra.get("steps", {}), loops.members()
        if steps.keys() != members.keys():
            raise CheckpointError(
                f"{source} has the trainers {sorted(steps)}, and this program {sorted(members)}.\n"
                "  Make the same ones, by the same names, or give another workdir."
            )
        saved = source.arrays()
        carry = tree.map_named(lambda name, x: _like_saved(x, saved.get(f"carry/{name}")), self.carry)
        target = {"carry": carry, "key": loops.randomness.key}
        found = restore(source, target, ignore="^trainers/.*" if steps else None)
        self.carry, loops.randomness.key = found["carry"], found["key"]
        for name, member in members.items():
            of_member = subtree(source, f"trainers/{name}")
            member.begin_from(lambda target, of_member=of_member: restore(of_member, target), steps[name])


def _like_saved(given: Any, saved: LazyArray | None) -> Any:
    """Return what an array of the carry is restored as: it may have grown, as a replay buffer does."""
    if saved is None or not isinstance(given, np.ndarray):
        return given
    return jax.ShapeDtypeStruct(saved.shape, given.dtype)
