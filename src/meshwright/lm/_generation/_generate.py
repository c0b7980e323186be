"""Three ways to generate tokens.

`generate` and `stream` serve many prompts in a fixed number of rows, which get new prompts when they end.
`generate_batch` is a pure function of one batch, for use inside `jit`: in a prediction or a training step.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from meshwright.base._internal import PyTree
from meshwright.errors import UsageError
from meshwright.lm._generation._beams import beam_search
from meshwright.lm._generation._decoding import GREEDY, Decoding
from meshwright.lm._generation._model import Model, check_positions, check_tokens, prompt_vocabulary
from meshwright.lm._generation._rows import Prompts, advanced, begun
from meshwright.lm._generation._slots import Piece, Sizes, mesh_of, pieces_of, searched
from meshwright.processes import _internal as processes
from meshwright.training._internal import as_seed, key_of

Prompt = Sequence[int] | np.ndarray


def generate(
    model: Model,
    params: PyTree,
    prompts: Iterable[Prompt],
    decoding: Decoding = GREEDY,
    *,
    seed: int = 0,
    length: int | None = None,
    slots: int = 8,
) -> list[np.ndarray]:
    """Return the new tokens of each prompt, int32[n] each, in order; a stop sequence is at their end.

    It runs on the mesh that the parameters are on, and each process gets all results. Rows are split over
    the axes of a batch, heads over `tensor`. Two programs are compiled, for prompts of all lengths up to
    `length`, and a third if there are more prompts than `slots`. A later call with the same model, decoding,
    `length` and `slots` compiles nothing.

    Args:
      model: The model: `mw.lm.with_cache(cfg)`, or a `mw.lm.Model` of your own.
      params: Its parameters.
      prompts: The prompts, each a sequence of tokens; of an encoder-decoder, its inputs. An iterator is read
        as rows become free.
      decoding: How tokens are chosen, and when rows end. The default is greedy.
      seed: The seed of all draws. What a prompt gets depends on the seed, its number and its tokens only.
      length: The bound of the length of rows, prompt and new tokens; of an encoder-decoder, of its inputs.
        None takes a power of two that holds the longest.
      slots: The number of rows that are computed together.

    Raises:
      UsageError: A prompt is empty or not of the model's tokens, or is too long for `length` or the model; an
        iterator is given without `length`; or processes give different prompts or settings.

    Example:
      >>> cfg = mw.lm.decoder.Config(vocabulary=16, model=8, layers=2, heads=2, feed_forward=16)
      >>> params = mw.lm.decoder.init(cfg, mw.training.key_of(0))
      >>> decoding = mw.lm.Decoding(max_new_tokens=5, temperature=0.8, top_p=0.9)
      >>> rows = mw.lm.generate(mw.lm.with_cache(cfg), params, [[1], [2, 3, 4]], decoding, seed=1)
      >>> [len(row) for row in rows]
      [5, 5]
    """
    pieces_by_prompt: dict[int, list[np.ndarray]] = {}
    options = {"seed": seed, "length": length, "slots": slots, "every": 64}
    for piece in stream(model, params, prompts, decoding, **options):
        pieces_by_prompt.setdefault(piece.number, []).append(piece.tokens)
    return [np.concatenate(pieces_by_prompt[number]) for number in range(len(pieces_by_prompt))]


def stream(
    model: Model,
    params: PyTree,
    prompts: Iterable[Prompt],
    decoding: Decoding = GREEDY,
    *,
    seed: int = 0,
    length: int | None = None,
    slots: int = 8,
    every: int = 16,
    first: int = 0,
) -> Iterator[Piece]:
    """Yield the new tokens of all prompts as they are made, a `Piece` for a prompt after the other.

    Beam search yields a whole row at once.

    Args:
      model: As in `generate`.
      params: As in `generate`.
      prompts: As in `generate`.
      decoding: As in `generate`.
      seed: As in `generate`.
      length: As in `generate`.
      slots: As in `generate`.
      every: The number of tokens that each row gets before they are fetched and free rows get new prompts.
      first: The number of the first prompt, if those before it were done by another call.

    Raises:
      UsageError: As `generate`.

    Example:
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> pieces = mw.lm.stream(model, jnp.eye(4), [[1, 2]], mw.lm.Decoding(max_new_tokens=5), every=2)
      >>> [(len(piece.tokens), piece.is_last) for piece in pieces]
      [(2, False), (2, False), (1, True)]
    """
    key, mesh = key_of(as_seed(seed)), mesh_of(params)
    sizes = _sizes(model, prompts, decoding, length, slots, mesh)
    if mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1:
        facts: dict[str, object] = {
            "decoding": decoding,
            "sizes": sizes,
            "seed": seed,
            "every": every,
            "first": first,
        }
        # Processes that differ would wait for each other in different programs.
        processes.compare("what is generated", lambda: _facts(prompts, facts))
    vocabulary = prompt_vocabulary(model, params, decoding)
    queue = enumerate(_checked(prompts, sizes, first, vocabulary), first)
    if decoding.beams > 1:
        return searched(model, decoding, params, mesh, sizes, queue)
    return pieces_of(model, decoding, params, mesh, sizes, queue, key, every)


def _facts(prompts: Iterable[Prompt], facts: dict[str, object]) -> dict[str, str]:
    """Return the texts that must be equal on all processes. The prompts of an iterator are not read."""
    read = [np.asarray(prompt).tolist() for prompt in prompts] if isinstance(prompts, Sized) else "iterator"
    return {name: repr(value) for name, value in {"prompts": read, **facts}.items()}


def length_for(model: Model, prompts: Iterable[Prompt], decoding: Decoding) -> int:
    """Return the bound of the length of rows that holds the longest of these prompts, a power of two."""
    longest = max((len(prompt) for prompt in prompts if isinstance(prompt, Sized)), default=1)
    length = longest if model.encode else longest + decoding.max_new_tokens
    # Powers of two share programs between calls with prompts of similar lengths.
    bound = max(64, 1 << (length - 1).bit_length())
    if model.positions is not None and model.encode is None:
        bound = max(length, min(bound, model.positions))
    return bound


def _sizes(
    model: Model,
    prompts: Iterable[Prompt],
    decoding: Decoding,
    length: int | None,
    slots: int,
    mesh: Mesh | None,
) -> Sizes:
    """Return the shapes that programs are compiled for."""
    new = decoding.max_new_tokens
    if length is None:
        if not isinstance(prompts, Sized):
            raise UsageError("an iterator of prompts needs the bound of their length: give length=1024.")
        length = length_for(model, prompts, decoding)
    if slots < 1:
        raise UsageError(f"slots={slots}: expected at least 1.")
    if model.encode is not None:
        return Sizes.for_mesh(mesh, 1 + new, length, length, new, slots)
    check_positions(model, length)
    if length <= new:
        raise UsageError(f"length={length} leaves no room for a prompt beside max_new_tokens={new}.")
    return Sizes.for_mesh(mesh, length, 0, length - new, new, slots)


def _checked(prompts: Iterable[Prompt], sizes: Sizes, first: int, vocabulary: int) -> Iterator[np.ndarray]:
    """Yield the prompts as int32[n]."""
    for number, prompt in enumerate(prompts, first):
        array = np.asarray(prompt)
        if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
            raise UsageError(
                f"prompt {number} must be a sequence of tokens, at least one; found {_short(prompt)}.\n"
                "  Encode texts with the tokenizer; for nothing to begin with, give its first token."
            )
        if array.size > sizes.longest:
            raise UsageError(
                f"prompt {number} has {array.size} tokens; there is room for {sizes.longest} beside "
                f"max_new_tokens={sizes.new}.\n  Give a larger length, or a shorter prompt."
            )
        check_tokens(f"prompt {number}", array, vocabulary)
        yield array.astype(np.int32)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


class Generated(NamedTuple):
    """The rows that were generated."""

    tokens: jax.Array
    """The new tokens, int32[B, `max_new_tokens`]; 0 after the end of each row."""
    lengths: jax.Array
    """The number of new tokens of each row, int32[B]. A stop sequence that ended the row counts."""


def generate_batch(
    model: Model,
    params: PyTree,
    prompts: jax.Array,
    lengths: jax.Array,
    decoding: Decoding,
    key: jax.Array | None = None,
) -> Generated:
    """Return what follows each prompt. A pure function, for use inside `jit`.

    Args:
      model: The model.
      params: Its parameters.
      prompts: The prompts, int[B, P], padded at their end; of an encoder-decoder, its inputs.
      lengths: The number of tokens of each prompt, int[B], at least 1.
      decoding: How tokens are chosen.
      key: The key of all draws. Greedy decoding and beam search need none.

    Raises:
      UsageError: Tokens are drawn, and there is no key; or rows are longer than the model supports.

    Example:
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> deployer = mw.Deployer(seed=0, verbose=False)
      >>> def predict(params, batch, key):
      ...     decoding = mw.lm.Decoding(temperature=1.0, max_new_tokens=5)
      ...     prompts, lengths = batch["prompt"], batch["length"]
      ...     return mw.lm.generate_batch(model, params, prompts, lengths, decoding, key)
      >>> predictor = mw.Predictor(deployer, predict=predict, output=lambda rows: rows.tokens.tolist())
      >>> examples = [{"prompt": np.array([1, 2, 3]), "length": np.int32(3)}] * 8
      >>> first, again, other = (predictor.predict(examples, 1, jnp.zeros((9, 9)), seed=x) for x in (1, 1, 2))
      >>> first == again, first == other, len(first[0])
      (True, False, 5)
    """
    if key is None and not decoding.is_greedy:
        raise UsageError(f"temperature={decoding.temperature} draws tokens: give a key.")
    batch = batch_of(model, prompts, lengths, decoding.max_new_tokens)
    if decoding.beams > 1:
        tokens_BS, lengths_B = beam_search(model, decoding, params, batch)
    else:
        rows = begun(model, params, batch)
        # Greedy decoding and beam search draw nothing, so any key will do.
        key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)) if key is None else key
        limits = jnp.int32(decoding.max_new_tokens), jnp.int32(len(prompts))
        rows = advanced(model, decoding, params, rows, key, *limits)
        tokens_BS, lengths_B = rows.tokens, rows.lengths
    counts_B = lengths_B - batch.lengths
    take = jnp.arange(decoding.max_new_tokens)
    positions_BN = jnp.clip(batch.lengths[:, None] + take, 0, tokens_BS.shape[1] - 1)
    new = jnp.take_along_axis(tokens_BS, positions_BN, axis=1)
    return Generated(jnp.where(take < counts_B[:, None], new, 0), counts_B)


def batch_of(model: Model, prompts: jax.Array, lengths: jax.Array, max_new_tokens: int) -> Prompts:
    """Return a batch to begin with, given padded prompts."""
    prompts, lengths = jnp.asarray(prompts, jnp.int32), jnp.asarray(lengths, jnp.int32)
    B, P = prompts.shape
    numbers = jnp.arange(B, dtype=jnp.uint32)
    if model.encode is not None:
        inputs = prompts, jnp.arange(P) < lengths[:, None]
        ones, starts = jnp.ones(B, jnp.int32), jnp.full((B, 1 + max_new_tokens), model.start, jnp.int32)
        return Prompts(starts, ones, ones + max_new_tokens, numbers, inputs)
    check_positions(model, P + max_new_tokens)
    padded = jnp.pad(prompts, ((0, 0), (0, max_new_tokens)))
    return Prompts(padded, lengths, lengths + max_new_tokens, numbers)
