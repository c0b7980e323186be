"""Tokens from a file of JSON lines, as rows of one length, and their loss.

    {"tokens": [1, 15, 7, 2]}
    {"tokens": [1, 9, 4, 8, 2], "weights": [0, 0, 0, 1, 1]}

`weights` says how much each token counts in the loss, as one that is predicted: 0 for those of a question. By
default each counts 1.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.documents import parse_object, read_file
from meshwright.errors import InputError, UsageError
from meshwright.metrics import Mean
from meshwright.models import decoder
from meshwright.nn import cross_entropy, token_losses
from meshwright.storage import local_path
from meshwright.tree import PyTree

Rows = dict[str, np.ndarray]
"""`tokens`, `segments` and `weights`, all [rows, length]. Segments are 1, or 0 for padding; weights are whole
numbers if they can be."""


def read_rows(path: str | Path, length: int) -> Rows:
    """Return the examples of a file of JSON lines, cut after `length` tokens and padded to the longest.

    Args:
      path: A local file. Each line is `{"tokens": […]}`, or has `"weights": […]` besides.
      length: The largest number of tokens in a row.

    Raises:
      InputError: There is no such file, or a line is not of this form. The message has its number.
    """
    file = local_path(path)
    try:
        lines = read_file(file).splitlines()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
    pairs = [_pair(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise InputError(f"{file} has no examples.")
    longest = min(length, max(len(tokens) for tokens, _ in pairs))
    found: Rows = {
        "tokens": np.zeros((len(pairs), longest), np.int32),
        "segments": np.zeros((len(pairs), longest), np.int32),
        "weights": np.zeros((len(pairs), longest), np.float32),
    }
    for row, (tokens, weights) in enumerate(pairs):
        end = min(len(tokens), longest)
        found["tokens"][row, :end], found["segments"][row, :end] = tokens[:end], 1
        found["weights"][row, :end] = weights[:end]
    if not np.any(found["weights"] % 1):  # a run warns of batches that are wider than what it computes in
        found["weights"] = found["weights"].astype(np.int32)
    return found


def _pair(file: Path, number: int, line: bytes) -> tuple[list[int], list[float]]:
    where = f"{file}, line {number}"
    try:
        said = parse_object(line)
    except ValueError as error:
        raise InputError(f"{where}: {error}.") from None
    tokens = said.get("tokens")
    if not isinstance(tokens, list) or len(tokens) < 2 or not all(_is_token(each) for each in tokens):
        raise InputError(
            f'{where} has no tokens: expected {{"tokens": [1, 15, 7]}} with two whole numbers or more, found '
            f"the keys {', '.join(said) or 'none'}. Turn texts into tokens with the model's tokenizer first."
        )
    weights = said.get("weights", [1] * len(tokens))
    if not isinstance(weights, list) or len(weights) != len(tokens) or not all(map(_is_weight, weights)):
        raise InputError(f"{where}: weights must be {len(tokens)} numbers from 0, one for each token.")
    return tokens, weights


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < float("inf")


def split_rows(rows: Rows, held_out: float, seed: int) -> tuple[Rows, Rows]:
    """Return the examples to train on and those that are held out, at least one of each.

    Args:
      rows: All examples.
      held_out: The share that is held out.
      seed: The seed of the choice.

    Raises:
      UsageError: The share is not between 0 and 1, or there is only one example.
    """
    size = len(rows["tokens"])
    if not 0 < held_out < 1 or size < 2:
        raise UsageError(f"held_out={held_out} of {size} examples leaves none on one side.")
    order = np.random.default_rng(seed).permutation(size)
    number = min(max(round(held_out * size), 1), size - 1)
    out, kept = np.sort(order[:number]), np.sort(order[number:])
    return {name: x[kept] for name, x in rows.items()}, {name: x[out] for name, x in rows.items()}


def rows_loss(cfg: decoder.Config, params: PyTree, batch: Mapping[str, jax.Array], remat: str) -> Mean:
    """Return the loss of a batch in nats per token, each token counted by its weight."""
    features, labels, weights = _predicted(cfg, params, batch, remat)
    head = decoder.head(cfg, params)
    return cross_entropy(features, head, labels, label_weights=weights, softcap=cfg.logit_cap)


def rows_score(cfg: decoder.Config, params: PyTree, batch: Mapping[str, jax.Array]) -> dict[str, Mean]:
    """Return the sum of the losses of each row, and the sum of its weights: `loss` is then per token."""
    features, labels, weights = _predicted(cfg, params, batch, "nothing")
    losses = token_losses(features, decoder.head(cfg, params), labels, softcap=cfg.logit_cap)
    return {"loss": Mean((losses * weights).sum(-1), weights.sum(-1))}


def _predicted(
    cfg: decoder.Config, params: PyTree, batch: Mapping[str, jax.Array], remat: str
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the features before each token but the first, these tokens, and how much each counts."""
    tokens, segments = batch["tokens"], batch.get("segments")
    before = None if segments is None else segments[:, :-1]
    weights = jnp.ones(tokens[:, 1:].shape, jnp.float32)
    if segments is not None:
        weights *= (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
    if "weights" in batch:
        weights *= batch["weights"][:, 1:]
    return decoder.features(cfg, params, tokens[:, :-1], before, remat=remat), tokens[:, 1:], weights
