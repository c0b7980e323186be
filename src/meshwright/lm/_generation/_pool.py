"""`Pool`: rows that prompts join and leave one by one, each with settings of its own."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from meshwright.base._internal import PyTree
from meshwright.errors import UsageError
from meshwright.lm._generation._batch import check_positions
from meshwright.lm._generation._decoding import GREEDY, Decoding
from meshwright.lm._generation._model import Model, vocabulary_of
from meshwright.lm._generation._rows import Draws, Prompts, Rows
from meshwright.lm._generation._slots import (
    ANY_LENGTH,
    Placed,
    Sizes,
    advancing,
    beginning,
    padded_prompts,
    refilling,
)
from meshwright.lm._generation._stream import mesh_of
from meshwright.training._internal import key_of

_ALL = 2**30


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
      >>> pool.start({1: mw.lm._internal.Wanted(np.array([0]), max_new_tokens=3)})
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
        first = GenerationRequest(np.zeros(1, np.int32), 1)
        self.start({0: first})
        self.advance(1)

    def reset(self) -> None:
        """Empty all rows, also after a program has failed."""
        vars(self).pop("_rows", None)  # first, as there may be no memory for both
        rows: Rows = beginning(self._model, self._mesh)(self._params, self._prompts([], self.slots))
        self._rows, self._placed = rows, Placed.for_rows(rows)
        self._lengths = np.ones(self.slots, np.int32)

    def room(self, prompt_length: int) -> int:
        """Return how many new tokens a prompt of this length can get; 0 or less if it is too long."""
        if self._model.encode is not None:
            return self._sizes.new if prompt_length <= self._sizes.inputs else 0
        return self._sizes.row - prompt_length

    def start(self, requests: dict[int, GenerationRequest]) -> None:
        """Put prompts into slots; what was in these is forgotten."""
        pending = list(requests.items())
        while pending:
            batch, pending = pending[: self._sizes.refilled], pending[self._sizes.refilled :]
            slots = [slot for slot, _ in batch]
            unused = [self.slots] * (self._sizes.refilled - len(batch))  # a slot that does not exist
            prompts = self._prompts([request for _, request in batch], self._sizes.refilled)
            slot_index = np.array(slots + unused, np.int32)
            program = refilling(self._model, self._mesh, self._placed)
            self._rows = program(self._params, self._rows, prompts, slot_index)
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
            top_k = _ALL if request.top_k is None else min(request.top_k, _ALL)
            for array, value in zip(draws, (request.temperature, top_k, request.top_p, request.min_p), strict=True):
                array[row] = value
        return prompts._replace(limits=limits, draws=draws)
