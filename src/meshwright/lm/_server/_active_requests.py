"""A request whose rows are being generated, and its answer as it grows."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from meshwright.lm._generation._pool import GenerationRequest
from meshwright.lm._server._answers import END, Answer, Document, as_event, error
from meshwright.lm._server._batcher import Batcher, Update
from meshwright.lm._server._requests import Chat, Completion, RefusedRequest

_FAILED = "the model failed; the server's log says where."


class ActiveRequest:
    """A request whose rows are being generated."""

    def __init__(
        self,
        batcher: Batcher,
        served: Any,
        request: Completion | Chat,
        generations: list[GenerationRequest],
        num_prompt_tokens: int,
    ):
        self._batcher, self._num_prompt_tokens = batcher, num_prompt_tokens
        self._document = Document(served.name, isinstance(request, Chat))
        self._updates: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self._sends_usage = bool(request.stream_options and request.stream_options.include_usage)
        stops = served.decoding.stop
        self._answers = [Answer(served.tokenizer, request.stops, stops, generation.max_new_tokens) for generation in generations]
        loop, self._started = asyncio.get_running_loop(), time.monotonic()

        def update_of(index: int) -> Any:
            def on_update(update: Update) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._updates.put_nowait, (index, update))

            return on_update

        self._entries = batcher.submit(generations, [update_of(index) for index in range(len(generations))])

    def leave(self) -> None:
        """Free the rows, if they have not ended, and tell the log of the request, without its texts."""
        self._batcher.leave(self._entries)
        num_new, ended = (
            sum(answer.num_tokens for answer in self._answers),
            all(answer.reason for answer in self._answers),
        )
        duration = time.monotonic() - self._started
        note = "" if ended else ", not ended"
        print(
            f"  {self._num_prompt_tokens} + {num_new} tokens in {duration:.2f} s{note}", file=sys.stderr, flush=True
        )

    async def pieces(self) -> AsyncIterator[tuple[int, str, str | None]]:
        """Yield the index, the new text and the reason of the end of an answer, until all have ended."""
        while not all(answer.reason for answer in self._answers):
            index, update = await self._updates.get()
            if update.has_failed:
                raise RefusedRequest(500, _FAILED)
            answer = self._answers[index]
            if answer.reason:
                continue
            text = answer.add(update.tokens, is_last=update.is_last)
            if answer.reason and not update.is_last:
                self._batcher.leave([self._entries[index]])
            if text or answer.reason:
                yield index, text, answer.reason

    async def whole(self) -> Response:
        """Return the answer when it has ended."""
        texts = [""] * len(self._answers)
        async for index, text, _ in self.pieces():
            texts[index] += text
        return JSONResponse(self._document.whole(texts, self._answers, self._num_prompt_tokens))

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of the answer as it grows."""
        begun: set[int] = set()
        try:
            async for index, text, reason in self.pieces():
                yield self._document.event(index, text, reason, is_first=index not in begun)
                begun.add(index)
        except RefusedRequest as refusal:
            yield as_event(error(refusal.message, refusal.status))
            return
        if self._sends_usage:
            yield self._document.last_event(self._answers, self._num_prompt_tokens)
        yield END
