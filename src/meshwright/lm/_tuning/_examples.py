"""Lines of a file of JSON as tokens, each with its weight in the loss, and as rows of one length.

    {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "It is so."}]}
    {"prompt": "Why?", "completion": " It is so."}
    {"text": "It is so."}
    {"tokens": [1, 9, 4, 8, 2], "weights": [0, 0, 0, 1, 1]}
    {"inputs": [5, 9, 4, 1], "targets": [8, 2, 1]}

Of messages the assistant's count, of a prompt with its completion the completion, and of a text all. Prompt
and completion may be messages, too. `tools` beside messages are those that the assistant may call. The
model's own tokenizer makes the tokens, by its own template. Models such as T5, which write targets, given
inputs, take prompts with completions, and the last form.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

import numpy as np

from meshwright.base._internal import local_path, parse_object, read_file
from meshwright.data._internal import Chat, Encoded, chat
from meshwright.errors import InputError, UsageError

FORMS = '{"messages": […]}, {"prompt": …, "completion": …}, {"text": "…"} or {"tokens": [1, 15, 7]}'
PAIR_FORMS = '{"prompt": "…", "completion": "…"} or {"inputs": [1, 15, 7], "targets": [9, 4]}'


class Example(NamedTuple):
    """A line of the file."""

    tokens: list[int]
    weights: list[float]

    @property
    def largest(self) -> int:
        """Return the largest token."""
        return max(self.tokens)


class Pair(NamedTuple):
    """A line of a file for models that write targets, given inputs."""

    inputs: list[int]
    targets: list[int]

    @property
    def largest(self) -> int:
        """Return the largest token."""
        return max(*self.inputs, *self.targets)


LineType = TypeVar("LineType", Example, Pair)


class _FileLine(NamedTuple):
    where: str
    """The file and the number of the line."""
    content: dict[str, Any] | ValueError
    """The object in the line, or the error that it is none."""


def read_examples(path: str | Path, model: str | Path | None, vocabulary: int | None) -> list[Example]:
    """Return the examples of a file of JSON lines."""
    lines, chats = _lines_of(path), functools.cache(lambda: _chats(model))
    conversations = _conversations(lines, chats)

    def example(content: dict[str, Any]) -> Example:
        if "tokens" in content:
            return Example(*_tokens_and_weights(content))
        return _counted(next(conversations) if "messages" in content else _encoded(content, chats))

    return [_read(line, example, vocabulary) for line in lines]


def _conversations(lines: list[_FileLine], chats: Callable[[], Chat]) -> Iterator[Encoded]:
    """Yield the tokens of each line with `messages`, in the order of the lines."""
    contents = [line.content for line in lines if isinstance(line.content, dict)]
    rows = [row for row in contents if "messages" in row and "tokens" not in row]
    # `encode_each` is faster than `encode` for each, and raises an error at the row that has it.
    yield from chats().encode_each((row["messages"], row.get("tools")) for row in rows)


def read_pairs(path: str | Path, model: str | Path | None, vocabulary: int | None) -> list[Pair]:
    """Return the pairs of a file of JSON lines."""
    chats = functools.cache(lambda: _chats(model))

    def pair(content: dict[str, Any]) -> Pair:
        prompt, completion = content.get("prompt"), content.get("completion")
        if isinstance(prompt, str) and isinstance(completion, str):
            return Pair(chats().plain(prompt).tokens, chats().plain(completion).tokens)
        inputs, targets = content.get("inputs"), content.get("targets")
        if not (_are_tokens(inputs) and _are_tokens(targets)):
            raise InputError(f"expected {PAIR_FORMS}, found the keys {', '.join(content) or 'none'}.")
        return Pair(inputs, targets)

    return [_read(line, pair, vocabulary) for line in _lines_of(path)]


def _lines_of(path: str | Path) -> list[_FileLine]:
    file = local_path(path)
    try:
        texts = read_file(file).splitlines()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
    lines = [
        _FileLine(f"{file}, line {number}", _content(text))
        for number, text in enumerate(texts, 1)
        if text.strip()
    ]
    if not lines:
        raise InputError(f"{file} has no examples.")
    return lines


def _content(text: bytes) -> dict[str, Any] | ValueError:
    try:
        return parse_object(text)
    except ValueError as error:
        return error


def _chats(model: str | Path | None) -> Chat:
    if model is None:
        raise InputError("this line needs a tokenizer: give the folder of the model.")
    return chat(model)


def _read(line: _FileLine, make: Callable[[dict[str, Any]], LineType], vocabulary: int | None) -> LineType:
    try:
        if isinstance(line.content, ValueError):
            raise line.content
        value = make(line.content)
    except (ValueError, InputError) as error:
        if isinstance(error, UsageError):
            raise
        raise InputError(f"{line.where}: {str(error).rstrip('.')}.") from None
    if vocabulary is not None and value.largest >= vocabulary:
        raise InputError(
            f"{line.where} has the token {value.largest}, but the model has {vocabulary}, numbered from 0. "
            "Is it the tokenizer of another model?"
        )
    return value


def _encoded(content: dict[str, Any], chats: Callable[[], Chat]) -> Encoded:
    if "prompt" in content and "completion" in content:
        return chats().answer(content["prompt"], content["completion"], tools=content.get("tools"))
    if isinstance(content.get("text"), str):
        return chats().plain(content["text"])
    raise InputError(f"expected {FORMS}, found the keys {', '.join(content) or 'none'}.")


def _counted(encoded: Encoded) -> Example:
    if len(encoded.tokens) < 2:
        raise InputError(f"it has {len(encoded.tokens)} tokens, and nothing to predict.")
    return Example(encoded.tokens, list(map(float, encoded.token_weights)))


def _tokens_and_weights(content: dict[str, Any]) -> tuple[list[int], list[float]]:
    tokens = content["tokens"]
    if not isinstance(tokens, list) or len(tokens) < 2 or not all(map(_is_token, tokens)):
        raise InputError("tokens must be a list of two whole numbers or more, from 0.")
    weights = content.get("weights", [1] * len(tokens))
    if not isinstance(weights, list) or len(weights) != len(tokens) or not all(map(_is_weight, weights)):
        raise InputError(f"weights must be {len(tokens)} numbers from 0, one for each token.")
    return tokens, weights


def _are_tokens(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(map(_is_token, value))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < float("inf")


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
    # A run warns of batches that are wider than the dtype that it computes in.
    if not np.any(rows["weights"] % 1):
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
    return {name: x[training] for name, x in rows.items()}, {
        name: x[held_out_rows] for name, x in rows.items()
    }
