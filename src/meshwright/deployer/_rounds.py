"""Rounds of training on data that depend on the state, as in reinforcement learning and self-training.

A finished call of `fit` cannot just return in a process that begins anew: the data of the next one are made
by the newest state. So a round is what is finished or not. Its end commits all trainers, the stream of keys
and the carry (a replay buffer, an environment, random state) at once; a round that was cut off is made again.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import ref

from meshwright import process
from meshwright.arrays import restore, subtree
from meshwright.checkpoint import Checkpoints
from meshwright.deployer._randomness import Randomness
from meshwright.deployer._workdir import Workdir
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
    """One round."""

    number: int
    """From 1, over all loops of the program."""
    carry: PyTree
    """What the round before left, and what this one leaves: set it."""


class Rounds:
    """An iterable of rounds, those of them that are not finished. `carry` is what the last one left."""

    def __init__(
        self,
        numbers: range,
        carry: PyTree,
        directory: Path | None,
        members: Callable[[], list[Member]],
        randomness: Randomness,
        tell: Callable[[str], None],
        inside: Callable[[bool], None],
    ):
        self.carry = carry
        self._numbers, self._directory, self._members = numbers, directory, members
        self._randomness, self._tell, self._inside = randomness, tell, inside

    def __iter__(self) -> Iterator[Round]:
        """Yield each round, and commit what it leaves when the next is asked for.

        Raises:
          UsageError: two trainers have one name, or the carry holds what cannot be saved.
          CheckpointError: the rounds were saved with another carry, or without one of the trainers.
        """
        if self._directory is None:
            yield from self._made(self._numbers.start, lambda number: None)
            return
        with Checkpoints(self._directory / FOLDER, keep=1) as checkpoints:
            done = process.on_lead(checkpoints.latest)
            first = self._numbers.start
            if done is not None and first == 1:
                self._go_on_from(checkpoints, done)
            if done is not None and done >= first:
                self._tell(f"↻ rounds up to {done} are finished")
                first = done + 1
            yield from self._made(first, lambda number: self._commit(checkpoints, number))

    def _made(self, first: int, commit: Callable[[int], None]) -> Iterator[Round]:
        for number in range(first, self._numbers.stop):
            made = Round(number, self.carry)
            self._inside(True)
            try:
                yield made
            finally:
                self._inside(False)
            self.carry = made.carry
            commit(number)

    def _commit(self, checkpoints: Checkpoints, number: int) -> None:
        members = self._named()
        states = {name: member.state for name, member in members.items()}
        steps = {name: member.step for name, member in members.items()}
        tree = {"carry": self.carry, "key": self._randomness.key, "trainers": states}
        checkpoints.save(number, tree, {"steps": steps})
        checkpoints.wait()

    def _go_on_from(self, checkpoints: Checkpoints, number: int) -> None:
        source = checkpoints.source(number)
        steps = source.extra.get("steps", {})
        members = self._named()
        if steps.keys() != members.keys():
            raise CheckpointError(
                f"{source} has the trainers {sorted(steps)}, and this program {sorted(members)}.\n"
                "  Make the same ones, by the same names, or give another workdir."
            )
        target = {"carry": self.carry, "key": self._randomness.key}
        found = restore(source, target, ignore="^trainers/.*" if steps else None)
        self.carry, self._randomness.key = found["carry"], found["key"]
        for name, member in members.items():
            of_member = subtree(source, f"trainers/{name}")
            member.begin_from(lambda target, of_member=of_member: restore(of_member, target), steps[name])

    def _named(self) -> Mapping[str, Member]:
        found: dict[str, Member] = {}
        for member in self._members():
            if member.name in found:
                raise UsageError(
                    "two trainers of this deployer have no name, or the same one: give each its own, "
                    "Trainer(..., name='actor')."
                )
            found[member.name] = member
        return found


class Loops:
    """The loops over rounds that a program makes, and the trainers that take part in them."""

    def __init__(self, directory: Workdir, randomness: Randomness, tell: Callable[[str], None]):
        self._directory, self._randomness, self._tell = directory, randomness, tell
        self._trainers: list[ref[Member]] = []
        self._num_rounds = 0
        self.is_in_round = False
        """Whether a round goes on."""

    def join(self, trainer: Member) -> None:
        """Have a trainer take part, as long as it lives."""
        self._trainers.append(ref(trainer))

    def rounds(self, num_rounds: int, carry: PyTree = None) -> Rounds:
        """Return rounds to iterate over, for training on data that are made by the state. Collective.

            for each in deployer.rounds(100, carry=buffer):
                each.carry = sample(actor.params, each.carry)
                actor.fit(each.carry, global_batch_size=64, n_epochs=1)

        With a workdir each round's end commits all trainers of the deployer, its stream of keys and the carry
        at once; a program that begins anew skips the rounds that are finished, and comes to the same bits.
        `fit` saves nothing by itself meanwhile. In one program a second loop makes more rounds.

        Args:
          num_rounds: how many this loop makes.
          carry: a pytree of arrays and numbers, given to the first round; without a workdir, anything.
        """
        if num_rounds < 1:
            raise UsageError(f"rounds({num_rounds}): give at least 1.")
        numbers = range(self._num_rounds + 1, self._num_rounds + num_rounds + 1)
        if self._num_rounds:
            self._tell(f"rounds {numbers.start} to {numbers.stop - 1}: {num_rounds} more")
        self._num_rounds += num_rounds
        directory = None if self._directory.path is None else self._directory.shared_for("rounds")
        return Rounds(
            numbers, carry, directory, self._living, self._randomness, self._tell, self._set_in_round
        )

    def _living(self) -> list[Member]:
        return [trainer for known in self._trainers if (trainer := known()) is not None]

    def _set_in_round(self, is_in_round: bool) -> None:
        self.is_in_round = is_in_round
