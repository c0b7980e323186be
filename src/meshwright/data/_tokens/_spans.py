"""The parts of a chat's text that the assistant wrote.

A template may mark them itself, by `{% generation %}`. For others, an assistant's message is what the text
gains by it: from the end of the messages before it, with the prompt for an answer, to its own end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.errors import InputError

ASSISTANT = "assistant"
Span = tuple[int, int]
Ask = tuple[int, bool]
"""The first so many messages of a chat, and whether what asks for an answer follows."""


def asks_of(messages: Sequence[Mapping[str, Any]]) -> list[Ask]:
    """Return the parts of a chat whose texts tell the assistant's: the whole, and those to either end."""
    ends = [ask for number in _answers(messages) for ask in ((number, True), (number + 1, False)) if ask[0]]
    return [*dict.fromkeys([(len(messages), False), *ends])]


def _answers(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    return [number for number, message in enumerate(messages) if message.get("role") == ASSISTANT]


def spans_by_prefix(messages: Sequence[Mapping[str, Any]], texts: Mapping[Ask, str]) -> list[Span]:
    """Return the spans of the assistant's messages in a chat's text, given the texts of its parts, in
    order.
    """
    text, spans = texts[len(messages), False], []
    for number in _answers(messages):
        start_text, end_text = texts.get((number, True), ""), texts[number + 1, False]
        if not (text.startswith(start_text) and text.startswith(end_text) and len(start_text) <= len(end_text)):
            raise InputError(
                f"the chat template writes the first {number} messages differently if message {number + 1} "
                "or others follow, so the assistant's part cannot be told from the text.\n"
                "  Put {% generation %} and {% endgeneration %} into the template around what the assistant "
                "writes, or make a row of each answer: prompt and completion."
            )
        spans.append((len(start_text), len(end_text)))
    return spans


def spans_by_marks(text: str, marked: str, opened: str, closed: str) -> list[Span]:
    """Return the spans of a text that are between marks where the template writes them, in order."""
    first, *rest = marked.split(opened)
    spans, pieces = [], [first]
    for piece in rest:
        start = sum(map(len, pieces))
        inside, end, outside = piece.partition(closed)
        if not end:
            raise InputError("the chat template has generation blocks within others.")
        spans.append((start, start + len(inside)))
        pieces += [inside, outside]
    if "".join(pieces) != text:
        raise InputError(
            "the chat template changes what its generation blocks enclose, so their place in the text "
            "cannot be told.\n  Put {% generation %} around what is written at last, outside of filters."
        )
    return spans


def weights_of(offsets: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """Return 1 for each token that lies in a span, also in part, and 0 for the others."""
    weights, remaining = [], list(spans)
    for start, end in offsets:
        while remaining and start >= remaining[0][1]:
            remaining.pop(0)
        weights.append(int(bool(remaining) and end > remaining[0][0]))
    return weights
