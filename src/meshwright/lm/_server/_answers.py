"""The answers of OpenAI's protocol: whole, or as events while they grow."""

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.lm._generation._text import GrowingText, Tokenizer, stop_sequences


class Answer:
    """The text of one row, cut before the first of the texts that end it, or before a stop sequence."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], sequences: Sequence[tuple[int, ...]]):
        self._growing, self._stops, self._sequences = GrowingText(tokenizer), stops, sequences
        special = (x[0] for x in stop_sequences(tokenizer, stops) if len(x) == 1 and not tokenizer.decode(x))
        # A special token is in no text, so it is looked for among the tokens.
        self._ends = set(special)
        # The last tokens may be the beginning of a stop sequence.
        self._longest_sequence = max(map(len, sequences), default=0)
        self._tokens: list[int] = []
        self._unsent = ""
        self.num_tokens = 0
        """The number of tokens that were generated."""
        self.reason: str | None = None
        """"stop" or "length" once the answer has ended."""

    def add(self, tokens: np.ndarray, *, is_last: bool) -> str:
        """Return the text that these tokens add."""
        self.num_tokens += len(tokens)
        if ends := [number for number, token in enumerate(tokens.tolist()) if token in self._ends]:
            tokens, is_last, self.reason = tokens[: ends[0]], True, "stop"
        self._tokens += tokens.tolist()
        if is_last:
            self._drop_sequence()
            self.reason = self.reason or "length"
        # The last tokens wait, as they may begin a stop sequence, which is not a part of the answer.
        ready = len(self._tokens) if is_last else max(0, len(self._tokens) - self._longest_sequence)
        ready_tokens, self._tokens = self._tokens[:ready], self._tokens[ready:]
        self._unsent += self._growing.add(ready_tokens) + (self._growing.rest() if is_last else "")
        return self._cut(is_last=is_last)

    def _drop_sequence(self) -> None:
        for sequence in self._sequences:
            if self._tokens[-len(sequence) :] == list(sequence):
                self._tokens, self.reason = self._tokens[: -len(sequence)], "stop"
                return

    def _cut(self, *, is_last: bool) -> str:
        positions = [
            position for position in (self._unsent.find(stop) for stop in self._stops) if position >= 0
        ]
        if positions:
            self.reason, text, self._unsent = "stop", self._unsent[: min(positions)], ""
            return text
        num_held = 0 if is_last else max((self._beginning(stop) for stop in self._stops), default=0)
        end = len(self._unsent) - num_held
        text, self._unsent = self._unsent[:end], self._unsent[end:]
        return text

    def _beginning(self, stop: str) -> int:
        """Return how many of the last characters are the beginning of a text that ends the answer."""
        sizes = range(min(len(stop) - 1, len(self._unsent)), 0, -1)
        return next((size for size in sizes if self._unsent.endswith(stop[:size])), 0)


@dataclass
class Document:
    """The parts that all answers to a request share."""

    model: str
    is_chat: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24])
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(
        self, texts: Sequence[str], answers: Sequence[Answer], num_prompt_tokens: int
    ) -> dict[str, Any]:
        """Return the document of answers that have ended."""
        choices = []
        for index, (text, answer) in enumerate(zip(texts, answers, strict=True)):
            content = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
            choices.append({"index": index, **content, "logprobs": None, "finish_reason": answer.reason})
        return {**self._head(""), "choices": choices, "usage": usage(answers, num_prompt_tokens)}

    def event(self, index: int, text: str, reason: str | None, *, is_first: bool) -> bytes:
        """Return the event of a piece of an answer."""
        if self.is_chat:
            role = {"role": "assistant"} if is_first else {}
            content: dict[str, Any] = {"delta": {**role, "content": text}}
        else:
            content = {"text": text}
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        return as_event({**self._head(".chunk"), "choices": [choice]})

    def last_event(self, answers: Sequence[Answer], num_prompt_tokens: int) -> bytes:
        """Return the event that tells the numbers of tokens, for clients that ask for it."""
        return as_event({**self._head(".chunk"), "choices": [], "usage": usage(answers, num_prompt_tokens)})

    def _head(self, chunk: str) -> dict[str, Any]:
        kind, letters = (
            (f"chat.completion{chunk}", "chatcmpl") if self.is_chat else ("text_completion", "cmpl")
        )
        return {"id": f"{letters}-{self.id}", "object": kind, "created": self.created, "model": self.model}


def usage(answers: Sequence[Answer], num_prompt_tokens: int) -> dict[str, int]:
    """Return the numbers of tokens of a request."""
    new = sum(answer.num_tokens for answer in answers)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": new,
        "total_tokens": num_prompt_tokens + new,
    }


def as_event(document: Any) -> bytes:
    """Return a document as an event of a stream."""
    # The event is ASCII: many clients end a line at U+0085 and U+2028, too, which JSON allows in a text.
    return f"data: {json.dumps(document)}\n\n".encode()


END = b"data: [DONE]\n\n"


def error(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the document of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
