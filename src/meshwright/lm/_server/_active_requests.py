"""A request whose rows are being generated, and its answer as it grows."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from meshwright.lm._generation._pool import Wanted
from meshwright.lm._server._answers import END, Answer, Document, as_event, error
from meshwright.lm._server._batcher import Batcher, News
from meshwright.lm._server._requests import Chat, Completion, Refused

_FAILED = "the model failed; the server's log says where."


class Going:
    """A request whose rows are being generated."""

    def __init__(
        self,
        batcher: Batcher,
        served: Any,
        asked: Completion | Chat,
        wanted: list[Wanted],
        num_prompt_tokens: int,
    ):
        self._batcher, self._num_prompt_tokens = batcher, num_prompt_tokens
        self._document = Document(served.name, isinstance(asked, Chat))
        self._told: asyncio.Queue[tuple[int, News]] = asyncio.Queue()
        self._tells_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        stops = served.decoding.stop
        self._answers = [Answer(served.tokenizer, asked.stops, stops, each.max_new_tokens) for each in wanted]
        loop, self._started = asyncio.get_running_loop(), time.monotonic()

        def tell_of(index: int) -> Any:
            def tell(news: News) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._told.put_nowait, (index, news))

            return tell

        self._tickets = batcher.submit(wanted, [tell_of(index) for index in range(len(wanted))])

    def leave(self) -> None:
        """Free the rows, if they have not ended, and tell the log of the request, without its texts."""
        self._batcher.leave(self._tickets)
        new, ended = (
            sum(each.num_tokens for each in self._answers),
            all(each.reason for each in self._answers),
        )
        took = time.monotonic() - self._started
        said = "" if ended else ", not ended"
        print(
            f"  {self._num_prompt_tokens} + {new} tokens in {took:.2f} s{said}", file=sys.stderr, flush=True
        )

    async def pieces(self) -> AsyncIterator[tuple[int, str, str | None]]:
        """Yield the index, the new text and the reason of the end of an answer, until all have ended."""
        while not all(answer.reason for answer in self._answers):
            index, news = await self._told.get()
            if news.has_failed:
                raise Refused(500, _FAILED)
            answer = self._answers[index]
            if answer.reason:
                continue
            text = answer.add(news.tokens, is_last=news.is_last)
            if answer.reason and not news.is_last:
                self._batcher.leave([self._tickets[index]])
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
        except Refused as refusal:
            yield as_event(error(refusal.message, refusal.status))
            return
        if self._tells_usage:
            yield self._document.last_event(self._answers, self._num_prompt_tokens)
        yield END
