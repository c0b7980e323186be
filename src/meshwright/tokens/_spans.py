"""The parts of a chat's text that the assistant wrote.

A template may mark them itself, by `{% generation %}`. For others, an assistant's message is what the text
gains by it: from the end of the messages before it, with the prompt for an answer, to its own end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshwright.errors import InputError
from meshwright.tokens._template import Span

ASSISTANT = "assistant"


def spans_by_prefix(
    text: str, messages: Sequence[Mapping[str, Any]], render: Callable[[Sequence[Any], bool], str]
) -> list[Span]:
    """Return the spans of the assistant's messages in a chat's text, in order.

    Raises:
      InputError: The template writes earlier messages differently if others follow, so that there is no such
        span.
    """
    spans = []
    for number, message in enumerate(messages):
        if message.get("role") != ASSISTANT:
            continue
        before = render(messages[:number], True) if number else ""
        after = text if number + 1 == len(messages) else render(messages[: number + 1], False)
        if not (text.startswith(before) and text.startswith(after) and len(before) <= len(after)):
            raise InputError(
                f"the chat template writes the first {number} messages differently if message {number + 1} "
                "or others follow, so the assistant's part cannot be told from the text.\n"
                "  Put {% generation %} and {% endgeneration %} into the template around what the assistant "
                "writes, or make a row of each answer: prompt and completion."
            )
        spans.append((len(before), len(after)))
    return spans


def weights_of(offsets: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """Return 1 for each token that lies in a span, also in part, and 0 for the others."""
    weights, left = [], list(spans)
    for start, end in offsets:
        while left and start >= left[0][1]:
            left.pop(0)
        weights.append(int(bool(left) and end > left[0][0]))
    return weights
