"""What a `Predictor` with a `Generation` predicts: a text for each prompt, in the order of the prompts."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from meshwright.base._internal import PyTree
from meshwright.engine._experiment._generation import Generation
from meshwright.errors import UsageError
from meshwright.lm._internal import length_for, stream, tokenizer_of


def written(
    given: Generation, examples: Any, params: PyTree, *, slots: int, seed: int, start: int = 0
) -> Iterator[list[Any]]:
    """Yield a list of one text, or of one list of tokens, for each prompt from number `start` on. Collective.

    Rows that end before earlier ones are kept until those have ended. What a prompt gets depends neither on
    `start` nor on the other prompts.
    """
    tokenizer = tokenizer_of(given.tokenizer)
    prompts = [_tokens(tokenizer, number, each) for number, each in enumerate(_each(examples))]
    length = length_for(given.model, prompts, given.decoding)  # of all, so that a resumed call is the same
    options = {"seed": seed, "length": length, "slots": slots, "first": start}
    rows: dict[int, list[int]] = {}
    ended: set[int] = set()
    for piece in stream(given.model, params, prompts[start:], given.decoding, **options):
        rows.setdefault(piece.number, []).extend(piece.tokens.tolist())
        if piece.is_last:
            ended.add(piece.number)
        while start in ended:
            tokens = rows.pop(start)
            yield [tokens if given.tokenizer is None else tokenizer.decode(tokens)]
            start += 1


def _each(examples: Any) -> Iterable[Any]:
    if isinstance(examples, Mapping):
        raise UsageError("a predictor that generates takes a list of texts or of sequences of tokens.")
    return examples() if callable(examples) else examples


def _tokens(tokenizer: Any, number: int, example: Any) -> Any:
    prompt = example.get("prompt") if isinstance(example, Mapping) else example
    if prompt is None:
        raise UsageError(
            f"example {number} has no prompt; it has {', '.join(map(str, example)) or 'nothing'}."
        )
    return list(tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
