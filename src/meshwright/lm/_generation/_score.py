"""`score`: the log-likelihood of rows of tokens, by the model that also generates them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from meshwright.base._internal import PyTree
from meshwright.errors import UsageError
from meshwright.lm._generation._model import Model, check_tokens, vocabulary_of
from meshwright.lm._generation._slots import inside, mesh_of
from meshwright.parallel._internal import Layout
from meshwright.processes import _internal as processes

Tokens = Sequence[int] | np.ndarray


class Scored(NamedTuple):
    """The likelihood of a row of tokens."""

    log_probs: np.ndarray
    """The log-probability of each scored token given all before it, in nats, float32[n]."""
    is_greedy: bool
    """True if each scored token is the most likely one at its place."""

    @property
    def log_likelihood(self) -> float:
        """The log-likelihood of the row in nats: the sum of `log_probs`, in float64."""
        return float(np.sum(self.log_probs, dtype=np.float64))


class _Row(NamedTuple):
    """A row as the model reads it. `labels[i]` is predicted from `read[: i + 1]` and the inputs."""

    read: np.ndarray
    labels: np.ndarray
    begin: int
    """The first label that is scored."""
    inputs: np.ndarray
    """The inputs of an encoder-decoder; empty for others."""


class _Batch(NamedTuple):
    """Padded rows; their arrays may be NumPy's."""

    read: Any
    labels: Any
    num_pieces: Any
    inputs: tuple[Any, Any] | None


def score(
    model: Model,
    params: PyTree,
    rows: Sequence[Tokens],
    prompts: Sequence[Tokens] | None = None,
    *,
    batch_size: int = 8,
) -> list[Scored]:
    """Return how likely the model finds each row, in order. Collective.

    It runs on the mesh that the parameters are on, and each process gets all results. Rows are split over
    the axes of a batch. The mesh, the batch size and the other rows change no figure, but for rounding. Rows
    of up to 64 tokens share a program, and so do those of up to 128, 256 and so on.

    Args:
      model: The model: `mw.lm.with_cache(cfg)`, or a `mw.lm.Model` of your own.
      params: Its parameters.
      rows: The rows, each a sequence of tokens.
      prompts: What comes before each row and is not scored; of an encoder-decoder, its inputs. None for
        nothing: the first token of each row is then not scored, as nothing is before it.
      batch_size: The number of rows that are computed together.

    Raises:
      UsageError: A row or prompt is empty or not of the model's tokens, or both are too long for it; there
        are not as many prompts as rows; or processes give different rows.

    Example:
      >>> model = mw.lm.without_cache(lambda params, tokens: params[tokens])  # a table of pairs
      >>> table = jnp.log(jnp.array([[0.5, 0.5], [0.1, 0.9]]))
      >>> [row] = mw.lm.score(model, table, [[0, 1, 1]])
      >>> np.exp(row.log_probs).round(6), row.is_greedy  # of two equal, the first is greedy
      (array([0.5, 0.9], dtype=float32), False)
      >>> mw.lm.score(model, table, [[1], [1, 0]], prompts=[[0, 1], [0]])[0].is_greedy
      True
    """
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size}: expected at least 1.")
    mesh = mesh_of(params)
    checked, vocabulary = _rows(model, rows, prompts), vocabulary_of(model, params)
    for i, row in enumerate(checked):
        check_tokens(f"row {i}", np.append(row.read, row.labels[-1:]), vocabulary)
    if mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1:
        processes.compare("what is scored", lambda: _facts(checked, batch_size))
    ways = Layout(mesh).batch_ways if mesh else 1
    # The mesh must divide the rows of a batch, so the size is rounded up.
    size = -(-batch_size // ways) * ways
    # Long rows first: rows of a batch then have much the same length, and memory runs out at once or never.
    order = sorted(range(len(checked)), key=lambda i: -len(checked[i].read))
    scores: dict[int, Scored] = {}
    for start in range(0, len(order), size):
        ids = order[start : start + size]
        batch = _padded(model, [checked[i] for i in ids], size)
        log_probs, is_greedy = jax.device_get(_program(model, mesh)(params, batch))
        for slot, i in enumerate(ids):
            scored = slice(checked[i].begin, len(checked[i].labels))
            scores[i] = Scored(log_probs[slot, scored], bool(is_greedy[slot, scored].all()))
    return [scores[i] for i in range(len(checked))]


def _rows(model: Model, rows: Sequence[Tokens], prompts: Sequence[Tokens] | None) -> list[_Row]:
    """Return the rows as the model reads them."""
    if prompts is not None and len(prompts) != len(rows):
        raise UsageError(f"{len(rows)} rows need as many prompts; found {len(prompts)}.")
    if model.encode is not None and prompts is None:
        raise UsageError("an encoder-decoder scores rows after its inputs: give them as prompts.")
    return [_row(model, i, rows[i], None if prompts is None else prompts[i]) for i in range(len(rows))]


def _row(model: Model, number: int, row: Tokens, prompt: Tokens | None) -> _Row:
    labels = _tokens(f"row {number}", row)
    prompt_tokens = np.zeros(0, np.int32) if prompt is None else _tokens(f"prompt {number}", prompt)
    if model.encode is not None:
        begun = np.concatenate([np.array([model.start], np.int32), labels])
        return _Row(begun[:-1], labels, 0, prompt_tokens)
    whole = np.concatenate([prompt_tokens, labels])
    if len(whole) < 2:
        raise UsageError(
            f"row {number} has one token and no prompt, so nothing is before it to predict it from.\n"
            "  Give it a prompt, such as the token that texts begin with."
        )
    if model.positions is not None and len(whole) - 1 > model.positions:
        raise UsageError(
            f"row {number} and its prompt have {len(whole)} tokens; the model has {model.positions} "
            f"positions, enough for {model.positions + 1} tokens.\n  Leave out tokens of the prompt."
        )
    return _Row(whole[:-1], whole[1:], max(len(prompt_tokens) - 1, 0), np.zeros(0, np.int32))


def _facts(rows: list[_Row], batch_size: int) -> dict[str, str]:
    """Return the texts that must be equal on all processes."""
    described_rows = [(row.labels.tolist(), row.begin, row.read[0], row.inputs.tolist()) for row in rows]
    return {"rows": repr(described_rows), "batch_size": repr(batch_size)}


def _tokens(name: str, value: Tokens) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"{name} must be a sequence of tokens, at least one; found {value!r:.60}.")
    return array.astype(np.int32)


def _padded(model: Model, rows: list[_Row], count: int) -> _Batch:
    """Return rows as arrays of `count` rows."""
    length = _bound(max(len(row.read) for row in rows))
    if model.positions is not None and model.encode is None:
        length = min(length, model.positions)
    read, labels = (np.zeros((count, length), np.int32) for _ in range(2))
    for slot, row in enumerate(rows):
        read[slot, : len(row.read)], labels[slot, : len(row.labels)] = row.read, row.labels
    num_pieces = -(-max(len(row.read) for row in rows) // min(model.prefill, length))
    if model.encode is None:
        return _Batch(read, labels, np.int32(num_pieces), None)
    longest = max(len(row.inputs) for row in rows)
    inputs, is_input = np.zeros((count, _bound(longest)), np.int32), np.zeros((count, _bound(longest)), bool)
    # Rows that only fill the batch need an input to attend to.
    is_input[:, 0] = True
    for slot, row in enumerate(rows):
        inputs[slot, : len(row.inputs)], is_input[slot, : len(row.inputs)] = row.inputs, True
    return _Batch(read, labels, np.int32(num_pieces), (inputs, is_input))


# Rows of up to 64 tokens share a program, and so do those of up to 128, 256 and so on.
def _bound(length: int) -> int:
    return max(64, 1 << (length - 1).bit_length())


@functools.lru_cache(maxsize=32)
def _program(model: Model, mesh: Mesh | None) -> Callable[..., tuple[jax.Array, jax.Array]]:
    shardings = None if mesh is None else Layout(mesh).replicated
    return inside(mesh, jax.jit(functools.partial(_scores, model, mesh), out_shardings=shardings))


def _scores(model: Model, mesh: Mesh | None, params: PyTree, batch: _Batch) -> tuple[jax.Array, jax.Array]:
    """Return the log-probability of each label, and whether it is the most likely token, [B, S] each."""
    if mesh is not None:
        split = Layout(mesh).batch_sharding
        whole = batch._replace(num_pieces=jnp.zeros(len(batch.read)))
        whole = jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, split), whole)
        batch = whole._replace(num_pieces=batch.num_pieces)
    B, S = batch.read.shape
    # Logits of `model.prefill` positions at a time: all of them may need more memory than there is.
    size = min(model.prefill, S)
    cache = model.init_cache(params, B, S)
    if model.encode is not None and batch.inputs is not None:
        cache = model.encode(params, *batch.inputs, cache)

    def piece(number: jax.Array, carried: tuple[PyTree, jax.Array, jax.Array]) -> Any:
        cache, *results = carried
        start = jnp.minimum(number * size, S - size)
        read, labels = (
            jax.lax.dynamic_slice_in_dim(x, start, size, axis=1) for x in (batch.read, batch.labels)
        )
        logits, cache = model.apply(params, read, cache, jnp.full(B, start, jnp.int32))
        of_piece = _of_labels(logits.astype(jnp.float32), labels)
        return cache, *(
            jax.lax.dynamic_update_slice_in_dim(x, new, start, axis=1)
            for x, new in zip(results, of_piece, strict=True)
        )

    empty = cache, jnp.zeros((B, S), jnp.float32), jnp.zeros((B, S), bool)
    return jax.lax.fori_loop(0, batch.num_pieces, piece, empty)[1:]


def _of_labels(logits_BTV: jax.Array, labels_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    chosen_BT1 = jnp.take_along_axis(logits_BTV, labels_BT[..., None], axis=-1)
    log_probs_BT = chosen_BT1[..., 0] - jax.nn.logsumexp(logits_BTV, axis=-1)
    return log_probs_BT, labels_BT == jnp.argmax(logits_BTV, axis=-1)
