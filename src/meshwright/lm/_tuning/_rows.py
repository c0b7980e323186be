"""Examples as rows of one length."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meshwright.errors import InputError, UsageError
from meshwright.lm._tuning._examples import read_examples, read_pairs

Rows = dict[str, np.ndarray]
"""`tokens`, `segments` and `weights`, all [rows, length]. Segments are 1, or 0 for padding; weights are whole
numbers if they can be. Of pairs: `inputs`, `is_input`, `targets` and `is_target`."""
log = logging.getLogger("meshwright")


def read_rows(
    path: str | Path, length: int, model: str | Path | None = None, *, vocabulary: int | None = None
) -> Rows:
    """Return the examples of a file of JSON lines, cut after `length` tokens and padded to the longest.

    How many were cut is logged, and how many were left out because nothing of them counts in the loss.
    """
    examples = read_examples(path, model, vocabulary)
    counted = [example for example in examples if any(example.weights[1:length])]
    if not counted:
        raise InputError(f"{path}: in no example does one of the first {length} tokens count in the loss.")
    _log_cut(path, length, [len(example.tokens) for example in examples], "tokens")
    if left_out := len(examples) - len(counted):
        log.warning(
            "%s: %d of %d examples are left out, as none of their first %d tokens counts in the loss",
            *(path, left_out, len(examples), length),
        )
    longest = min(length, max(len(example.tokens) for example in counted))
    rows: Rows = {
        "tokens": np.zeros((len(counted), longest), np.int32),
        "segments": np.zeros((len(counted), longest), np.int32),
        "weights": np.zeros((len(counted), longest), np.float32),
    }
    for row, (tokens, weights) in enumerate(counted):
        end = min(len(tokens), longest)
        rows["tokens"][row, :end], rows["segments"][row, :end] = tokens[:end], 1
        rows["weights"][row, :end] = weights[:end]
    if not np.any(rows["weights"] % 1):  # a run warns of batches that are wider than what it computes in
        rows["weights"] = rows["weights"].astype(np.int32)
    return rows


def read_pair_rows(
    path: str | Path, length: int, model: str | Path | None = None, *, vocabulary: int | None = None
) -> Rows:
    """Return the pairs of a file of JSON lines, for models such as T5, which write targets, given inputs.

    Inputs and targets are each cut after `length` tokens and padded to the longest. How many were cut is
    logged.
    """
    pairs = read_pairs(path, model, vocabulary)
    rows: Rows = {}
    for name, sequences in (
        ("input", [pair.inputs for pair in pairs]),
        ("target", [pair.targets for pair in pairs]),
    ):
        _log_cut(path, length, list(map(len, sequences)), f"{name}s")
        longest = min(length, max(map(len, sequences)))
        rows[f"{name}s"] = np.zeros((len(sequences), longest), np.int32)
        rows[f"is_{name}"] = np.arange(longest) < [[len(tokens)] for tokens in sequences]
        for row, tokens in enumerate(sequences):
            rows[f"{name}s"][row, : min(len(tokens), longest)] = tokens[:longest]
    return rows


def _log_cut(path: str | Path, length: int, sizes: Sequence[int], noun: str) -> None:
    if cut := [size for size in sizes if size > length]:
        log.warning(
            "%s: %d of %d examples have more than %d %s and are cut: %d of all %d %s are left out",
            *(path, len(cut), len(sizes), length, noun, sum(cut) - length * len(cut), sum(sizes), noun),
        )


def split_rows(rows: Rows, held_out: float, seed: int) -> tuple[Rows, Rows]:
    """Return the examples to train on and those that are held out, at least one of each."""
    size = len(next(iter(rows.values())))
    if not 0 < held_out < 1 or size < 2:
        raise UsageError(f"held_out={held_out} of {size} examples leaves none on one side.")
    order = np.random.default_rng(seed).permutation(size)
    number = min(max(round(held_out * size), 1), size - 1)
    held_out_rows, training = np.sort(order[:number]), np.sort(order[number:])
    return {name: x[training] for name, x in rows.items()}, {name: x[held_out_rows] for name, x in rows.items()}
