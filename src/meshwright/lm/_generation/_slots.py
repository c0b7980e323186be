"""Slots: a fixed number of rows that get new prompts when they end, driven by the host.

`pieces_of` serves a queue of prompts with one decoding. `Pool` serves prompts that join and leave one by one,
each with settings of its own. Both run the same programs, which advance all rows by some tokens at a time.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree
from meshwright.errors import UsageError
from meshwright.lm._generation._beams import beam_search
from meshwright.lm._generation._decoding import GREEDY, Decoding
from meshwright.lm._generation._model import Model, check_positions, vocabulary_of
from meshwright.lm._generation._rows import Draws, Prompts, Rows, advanced, begun
from meshwright.parallel._internal import Layout
from meshwright.training._internal import key_of

ANY_LENGTH = 2**30
"""`max_new_tokens` of the settings that programs are compiled for: rows have limits of their own."""

Queue = Iterator[tuple[int, np.ndarray]]
"""The prompts with their numbers."""


_ALL = 2**30


class Piece(NamedTuple):
    """New tokens of one row."""

    number: int
    """The number of the prompt, from 0."""
    tokens: np.ndarray
    """The tokens after those of the previous piece, int32[n]."""
    is_last: bool
    """True if the row has ended."""


@dataclass(frozen=True)
class Sizes:
    """The shapes that programs are compiled for."""

    row: int
    """The length of rows."""
    inputs: int
    """The length of an encoder-decoder's inputs; 0 for others."""
    longest: int
    """The length of the longest prompt."""
    new: int
    """The largest number of new tokens of a row."""
    slots: int
    """The number of rows."""
    refilled: int
    """The number of rows that get new prompts at a time: a quarter, as prompts are computed for that many."""

    @classmethod
    def for_mesh(
        cls, mesh: Mesh | None, row: int, inputs: int, longest: int, new: int, slots: int
    ) -> "Sizes":
        """Return the sizes for a mesh, which must divide the rows: `slots` is rounded up."""
        ways = Layout(mesh).batch_ways if mesh else 1
        per_way = -(-slots // ways)
        return cls(row, inputs, longest, new, per_way * ways, max(1, per_way // 4) * ways)


def pieces_of(
    model: Model,
    decoding: Decoding,
    params: PyTree,
    mesh: Mesh | None,
    sizes: Sizes,
    queue: Queue,
    key: jax.Array,
    every: int,
) -> Iterator[Piece]:
    """Yield the new tokens of all prompts."""
    first = list(itertools.islice(queue, sizes.slots))
    if not first:
        return
    settings = dataclasses.replace(decoding, max_new_tokens=ANY_LENGTH)
    rows = beginning(model, mesh)(params, padded_prompts(model, sizes, first, sizes.slots))
    placed = Placed.for_rows(rows)
    owners: list[int | None] = [number for number, _ in first] + [None] * (sizes.slots - len(first))
    # A queue that did not fill all slots has ended.
    are_more = len(first) == sizes.slots
    while any(owner is not None for owner in owners):
        old_lengths = np.asarray(jax.device_get(rows.lengths))
        # Rows stop early only for prompts that wait for a free row.
        limits = np.int32(every), np.int32(sizes.refilled if are_more else sizes.slots)
        rows = advancing(model, settings, mesh, placed)(params, rows, key, *limits)
        tokens, lengths, is_done = jax.device_get((rows.tokens, rows.lengths, rows.is_done))
        for slot, owner in enumerate(owners):
            if owner is not None:
                yield Piece(
                    owner, tokens[slot, old_lengths[slot] : lengths[slot]].copy(), bool(is_done[slot])
                )
                owners[slot] = None if is_done[slot] else owner
        free = [slot for slot, owner in enumerate(owners) if owner is None]
        while free and are_more:
            refilled, free = free[: sizes.refilled], free[sizes.refilled :]
            batch = list(itertools.islice(queue, len(refilled)))
            are_more = len(batch) == len(refilled)
            if batch:
                prompts = padded_prompts(model, sizes, batch, sizes.refilled)
                slots = _slot_index(sizes, refilled[: len(batch)])
                rows = refilling(model, mesh, placed)(params, rows, prompts, slots)
            for slot, (number, _) in zip(refilled, batch, strict=False):
                owners[slot] = number


def _slot_index(sizes: Sizes, slots: list[int]) -> np.ndarray:
    """Return the slot of each row that a program refills, int32[`sizes.refilled`]."""
    # Rows without a prompt get a slot that does not exist, and the write to it is dropped.
    return np.array(slots + [sizes.slots] * (sizes.refilled - len(slots)), np.int32)


def searched(
    model: Model, decoding: Decoding, params: PyTree, mesh: Mesh | None, sizes: Sizes, queue: Queue
) -> Iterator[Piece]:
    """Yield the best row of each prompt by beam search; the arguments are those of `pieces_of`."""
    settings = dataclasses.replace(decoding, max_new_tokens=ANY_LENGTH)
    while batch := list(itertools.islice(queue, sizes.slots)):
        prompts = padded_prompts(model, sizes, batch, sizes.slots)
        tokens, lengths = jax.device_get(_search(model, settings, mesh)(params, prompts))
        for slot, (number, _) in enumerate(batch):
            yield Piece(number, tokens[slot, prompts.lengths[slot] : lengths[slot]].copy(), True)


def padded_prompts(model: Model, sizes: Sizes, batch: list[tuple[int, np.ndarray]], count: int) -> Prompts:
    """Return prompts as padded arrays of `count` rows; those without a prompt have ended."""
    length = sizes.inputs or sizes.row
    # The arrays have one shape for any number of prompts, so that one program serves all.
    padded, lengths = np.zeros((count, length), np.int32), np.ones(count, np.int32)
    numbers, is_used = np.zeros(count, np.uint32), np.arange(count) < len(batch)
    for slot, (number, prompt) in enumerate(batch):
        padded[slot, : len(prompt)], lengths[slot], numbers[slot] = prompt, len(prompt), number % 2**32
    if model.encode is None:
        return Prompts(padded, lengths, np.where(is_used, lengths + sizes.new, 0), numbers)
    ones, starts = np.ones(count, np.int32), np.full((count, sizes.row), model.start, np.int32)
    inputs = padded, np.arange(length) < lengths[:, None]
    return Prompts(starts, ones, np.where(is_used, 1 + sizes.new, 0).astype(np.int32), numbers, inputs)


@dataclass(frozen=True)
class Placed:
    """The shardings of rows, the same before and after each program, so that each is compiled once."""

    leaves: tuple[Any, ...]
    structure: Any

    @classmethod
    def for_rows(cls, rows: Rows) -> "Placed":
        leaves, structure = jax.tree.flatten(rows)
        return cls(tuple(x.sharding for x in leaves), structure)

    @property
    def shardings(self) -> Rows:
        return jax.tree.unflatten(self.structure, self.leaves)


@functools.lru_cache(maxsize=32)
def beginning(model: Model, mesh: Mesh | None) -> Callable[..., Rows]:
    """Return the program `(params, prompts) -> rows`."""

    def begin(params: PyTree, prompts: Prompts) -> Rows:
        rows = begun(model, params, prompts)
        if mesh is None:
            return rows
        replicated = NamedSharding(mesh, P())
        fetched = {name: x for name, x in rows._asdict().items() if name != "cache"}
        # All but the cache is fetched by the host, and so is replicated.
        return rows._replace(**jax.lax.with_sharding_constraint(fetched, replicated))

    return inside(mesh, jax.jit(begin))


@functools.lru_cache(maxsize=32)
def advancing(model: Model, decoding: Decoding, mesh: Mesh | None, placed: Placed) -> Callable[..., Rows]:
    """Return the program `(params, rows, key, num_tokens, num_ends) -> rows`."""
    advance = functools.partial(advanced, model, decoding)
    return inside(mesh, jax.jit(advance, out_shardings=placed.shardings, donate_argnums=1))


@functools.lru_cache(maxsize=32)
def refilling(model: Model, mesh: Mesh | None, placed: Placed) -> Callable[..., Rows]:
    """Return the program `(params, rows, prompts, slots) -> rows`, with new prompts in some slots."""

    def refill(params: PyTree, rows: Rows, prompts: Prompts, slots: jax.Array) -> Rows:
        new = begun(model, params, prompts)
        return jax.tree.map(lambda x, row: x.at[slots].set(row, mode="drop"), rows, new)

    return inside(mesh, jax.jit(refill, out_shardings=placed.shardings, donate_argnums=1))


@functools.lru_cache(maxsize=32)
def _search(model: Model, decoding: Decoding, mesh: Mesh | None) -> Callable[..., Any]:
    shardings = None if mesh is None else NamedSharding(mesh, P())
    search = functools.partial(beam_search, model, decoding)
    return inside(mesh, jax.jit(search, out_shardings=shardings))


def inside(mesh: Mesh | None, program: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a program inside the mesh, for models that constrain by bare specs."""

    def call(*arguments: Any) -> Any:
        with nullcontext() if mesh is None else jax.set_mesh(mesh):
            return program(*arguments)

    return call


def mesh_of(params: PyTree) -> Mesh | None:
    """Return the mesh that the parameters are on; None if they are on no mesh."""
    placed = (x.sharding for x in jax.tree.leaves(params) if isinstance(x, jax.Array))
    named = (sharding.mesh for sharding in placed if isinstance(sharding, NamedSharding))
    return next((mesh for mesh in named if isinstance(mesh, Mesh)), None)


class GenerationRequest(NamedTuple):
    """A prompt, and how it is continued."""

    prompt: np.ndarray
    """The tokens, int32[n]."""
    max_new_tokens: int
    """The number of tokens after which the row ends."""
    temperature: float = 0.0
    """As in `Decoding`."""
    top_k: int | None = None
    """As in `Decoding`."""
    top_p: float = 1.0
    """As in `Decoding`."""
    min_p: float = 0.0
    """As in `Decoding`; 0 for none."""
    seed: int = 0
    """The seed of the draws: with the same one, a prompt gets the same tokens, whatever is beside it."""


class Pool:
    """A fixed number of rows, for a server: prompts join while others go on.

    Its programs are compiled when it is made. Call it from one thread.

    Example:
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> pool = mw.lm._internal.Pool(model, jnp.eye(4)[::-1], length=16, slots=2)
      >>> pool.start({1: mw.lm._internal.GenerationRequest(np.array([0]), max_new_tokens=3)})
      >>> pool.advance(8)[1]
      (array([3, 0, 3], dtype=int32), True)
    """

    def __init__(
        self,
        model: Model,
        params: PyTree,
        decoding: Decoding = GREEDY,
        *,
        length: int = 1024,
        slots: int = 8,
        new: int = 256,
    ):
        if model.encode is None:
            check_positions(model, length)
        if slots < 1 or length < 2:
            raise UsageError(f"slots={slots}, length={length}: expected at least 1 and 2.")
        self._model, self._params, self._mesh = model, params, mesh_of(params)
        inputs = length if model.encode is not None else 0
        sizes = Sizes.for_mesh(self._mesh, 1 + new if inputs else length, inputs, length, new, slots)
        self._sizes, self._key = sizes, key_of(0)
        self._decoding = dataclasses.replace(decoding, max_new_tokens=ANY_LENGTH, beams=1, length_penalty=1.0)
        self.slots = sizes.slots
        """The number of rows."""
        self.reset()
        self.vocabulary = vocabulary_of(model, params)
        """The number of tokens of the model."""
        # A first prompt compiles both programs, before clients wait for them.
        first = GenerationRequest(np.zeros(1, np.int32), 1)
        self.start({0: first})
        self.advance(1)

    def reset(self) -> None:
        """Empty all rows, also after a program has failed."""
        # The old rows go first, as there may be no memory for both.
        vars(self).pop("_rows", None)
        rows: Rows = beginning(self._model, self._mesh)(self._params, self._prompts([], self.slots))
        self._rows, self._placed = rows, Placed.for_rows(rows)
        self._lengths = np.ones(self.slots, np.int32)

    def max_new_tokens(self, prompt_length: int) -> int:
        """Return how many new tokens a prompt of this length can get; 0 or less if it is too long."""
        if self._model.encode is not None:
            return self._sizes.new if prompt_length <= self._sizes.inputs else 0
        return self._sizes.row - prompt_length

    def start(self, requests: dict[int, GenerationRequest]) -> None:
        """Put prompts into slots. The rows that these had before are dropped."""
        pending = list(requests.items())
        while pending:
            batch, pending = pending[: self._sizes.refilled], pending[self._sizes.refilled :]
            slots = [slot for slot, _ in batch]
            prompts = self._prompts([request for _, request in batch], self._sizes.refilled)
            program = refilling(self._model, self._mesh, self._placed)
            self._rows = program(self._params, self._rows, prompts, _slot_index(self._sizes, slots))
            self._lengths[slots] = prompts.lengths[: len(batch)]

    def advance(self, num_tokens: int, num_ends: int | None = None) -> dict[int, tuple[np.ndarray, bool]]:
        """Return the new tokens of each slot, int32[n], and whether its row has ended."""
        limits = np.int32(num_tokens), np.int32(self.slots if num_ends is None else num_ends)
        program = advancing(self._model, self._decoding, self._mesh, self._placed)
        self._rows = program(self._params, self._rows, self._key, *limits)
        tokens, lengths, is_done = jax.device_get((self._rows.tokens, self._rows.lengths, self._rows.is_done))
        old_lengths, self._lengths = self._lengths, np.array(lengths)
        return {
            slot: (tokens[slot, old_lengths[slot] : lengths[slot]].copy(), bool(is_done[slot]))
            for slot in range(self.slots)
        }

    def _prompts(self, requests: list[GenerationRequest], count: int) -> Prompts:
        prompts = padded_prompts(
            self._model, self._sizes, [(request.seed, request.prompt) for request in requests], count
        )
        limits = np.zeros(count, np.int32)
        limits[: len(requests)] = [request.max_new_tokens for request in requests]
        limits = np.where(limits > 0, prompts.lengths + limits, 0).astype(np.int32)
        draws = Draws(*(np.zeros(count, dtype) for dtype in (np.float32, np.int32, np.float32, np.float32)))
        for row, request in enumerate(requests):
            # Bounds are arrays, one value for each row, so `None` is a number that bounds nothing.
            top_k = _ALL if request.top_k is None else min(request.top_k, _ALL)
            for array, value in zip(
                draws, (request.temperature, top_k, request.top_p, request.min_p), strict=True
            ):
                array[row] = value
        return prompts._replace(limits=limits, draws=draws)
