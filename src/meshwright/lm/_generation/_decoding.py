"""`Decoding`: settings for the choice of the next token and for the end of a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from meshwright.base._internal import documented, explained_as
from meshwright.errors import UsageError


@documented
@explained_as("lm.Decoding")
@dataclass(frozen=True)
class Decoding:
    """Settings for the choice of the next token, and for the end of a row. The default is greedy.

    The logits are changed in this order: choices, repetition penalty, temperature, `top_k`, `top_p`, `min_p`.

    Raises:
      UsageError: A value is out of its range, or has no effect beside the others.

    Example:
      >>> mw.lm.Decoding(temperature=0.8, top_p=0.95, stop=(0, (13, 10))).stop
      ((0,), (13, 10))
    """

    max_new_tokens: int = 64
    """The number of tokens after which a row ends."""
    temperature: float = 0.0
    """The logits are divided by this before a token is drawn. 0 takes the most likely token."""
    top_k: int | None = None
    """Only so many of the most likely tokens can be drawn."""
    top_p: float | None = None
    """Only the most likely tokens that together have this probability can be drawn: nucleus sampling,
    Holtzman et al., arXiv:1904.09751."""
    min_p: float | None = None
    """Only tokens with at least this share of the highest probability can be drawn, Nguyen et al.,
    arXiv:2407.01082."""
    repetition_penalty: float = 1.0
    """Logits of tokens that the row has already are divided by this if positive, and multiplied if negative:
    Keskar et al., arXiv:1909.05858. The prompt counts, except that of an encoder-decoder."""
    beams: int = 1
    """The number of rows that beam search keeps for each prompt. Its result is the best of them."""
    length_penalty: float = 1.0
    """The score of a row that beam search has ended is its log probability over its length to this power."""
    stop: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens, each of which ends a row when it is generated. It is the end of the result. A
    token alone, such as an end-of-text token, may be given as a number."""
    choices: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens, if the result must be one of them. Empty for any result."""

    def __post_init__(self) -> None:
        for name in ("stop", "choices"):
            object.__setattr__(self, name, _sequences(name, getattr(self, name)))
        problems = [text for wrong, text in _rules(self) if wrong]
        if problems:
            raise UsageError("cannot generate with these settings:\n  " + "\n  ".join(problems))

    @property
    def is_greedy(self) -> bool:
        """True if each token is the most likely one."""
        return self.temperature == 0


def _sequences(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Return sequences of tokens as tuples."""
    value = (value,) if isinstance(value, Integral) else value
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise UsageError(f"{name} must be a list of tokens or of sequences of tokens; found {value!r}.")
    try:
        sequences = tuple((int(x),) if isinstance(x, Integral) else tuple(map(int, x)) for x in value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name} must hold sequences of tokens, which are whole numbers; found {value!r}.\n"
            "  Encode texts with the tokenizer first."
        ) from None
    if any(not sequence or min(sequence) < 0 for sequence in sequences):
        raise UsageError(f"{name} has an empty sequence or a negative token: {sequences}.")
    return sequences


def _rules(d: Decoding) -> list[tuple[bool, str]]:
    drawn = [f"{x}={getattr(d, x)}" for x in ("top_k", "top_p", "min_p") if getattr(d, x) is not None]
    prefixes = [(a, b) for a in d.choices for b in d.choices if a != b and b[: len(a)] == a]
    return [
        (d.max_new_tokens < 1, f"max_new_tokens={d.max_new_tokens}: expected at least 1."),
        (not d.temperature >= 0, f"temperature={d.temperature}: expected 0 or a positive number."),
        (d.top_k is not None and d.top_k < 1, f"top_k={d.top_k}: expected at least 1, or None."),
        (d.top_p is not None and not 0 < d.top_p <= 1, f"top_p={d.top_p}: expected above 0, up to 1."),
        (d.min_p is not None and not 0 < d.min_p <= 1, f"min_p={d.min_p}: expected above 0, up to 1."),
        (not d.repetition_penalty > 0, f"repetition_penalty={d.repetition_penalty}: expected above 0."),
        (d.beams < 1, f"beams={d.beams}: expected at least 1."),
        (d.is_greedy and bool(drawn), f"{', '.join(drawn)} has no effect with temperature=0: draw with 1.0."),
        (d.beams > 1 and not d.is_greedy, f"beams={d.beams} needs temperature=0: beam search draws nothing."),
        (d.beams == 1 and d.length_penalty != 1, "length_penalty has no effect without beams."),
        (
            bool(prefixes),
            f"choice {prefixes[:1]}: the first is the beginning of the second. End each with a stop token.",
        ),
        (bool(d.choices) and max(map(len, d.choices)) > d.max_new_tokens, "a choice exceeds max_new_tokens."),
    ]


GREEDY = Decoding()
"""The most likely token each time, and no end but `max_new_tokens`."""
