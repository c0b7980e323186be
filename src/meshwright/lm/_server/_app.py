"""The application: OpenAI's routes, the page for a browser, and a request while its rows are generated."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from meshwright.lm._generation._slots import GenerationRequest
from meshwright.lm._server._answers import END, Answer, Document, as_event, error
from meshwright.lm._server._batcher import Batcher, QueueFull, Update
from meshwright.lm._server._requests import (
    Chat,
    Completion,
    RefusedRequest,
    generation_requests,
    parsed,
    prompts_of,
)

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'"
)


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
        stop = served.decoding.stop
        self._answers = [Answer(served.tokenizer, request.stops, stop) for _ in generations]
        loop, self._started = asyncio.get_running_loop(), time.monotonic()

        def update_of(index: int) -> Any:
            def on_update(update: Update) -> None:
                # The event loop has ended, and nobody waits for the update.
                with contextlib.suppress(RuntimeError):
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
            f"  {self._num_prompt_tokens} + {num_new} tokens in {duration:.2f} s{note}",
            file=sys.stderr,
            flush=True,
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


def app_of(served: Any, batcher: Batcher, seconds: float) -> FastAPI:
    """Return the application."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(app, batcher)
    _add_looks(app, served, batcher)
    _add_answers(app, served, batcher, seconds)
    return app


def _add_errors(app: FastAPI, batcher: Batcher) -> None:
    @app.exception_handler(RefusedRequest)
    def refused(_: Request, refusal: RefusedRequest) -> Response:
        content = error(refusal.message, refusal.status, refusal.param, refusal.code)
        return JSONResponse(content, refusal.status)

    @app.exception_handler(QueueFull)
    def full(_: Request, __: QueueFull) -> Response:
        again = str(max(1, min(60, batcher.waiting // batcher.pool.slots)))
        content = error("too many requests wait: come again later.", 503, code="overloaded")
        return JSONResponse(content, 503, {"Retry-After": again})

    @app.exception_handler(HTTPException)
    def unknown(_: Request, problem: HTTPException) -> Response:
        content = error(f"{problem.detail}: try GET /v1/models.", problem.status_code)
        return JSONResponse(content, problem.status_code)

    @app.exception_handler(Exception)
    def failed(_: Request, __: Exception) -> Response:
        return JSONResponse(error("the server failed; its log says where.", 500), 500)


def _add_looks(app: FastAPI, served: Any, batcher: Batcher) -> None:
    page = (files("meshwright.lm._server") / "page.html").read_text(encoding="utf-8")
    about = {"id": served.name, "object": "model", "created": served.created, "owned_by": "meshwright"}

    @app.get("/")
    def home() -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    @app.get("/health")
    def health() -> Response:
        status = {"running": batcher.running, "waiting": batcher.waiting, "slots": batcher.pool.slots}
        return JSONResponse(status, 503 if batcher.is_closed else 200)

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [about]}

    @app.get("/v1/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        if name != served.name:
            message = f"there is no model of this name; there is {served.name!r}."
            raise RefusedRequest(404, message, None, "model_not_found")
        return about


def _add_answers(app: FastAPI, served: Any, batcher: Batcher, seconds: float) -> None:
    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        completion = await asyncio.to_thread(parsed, await request.body(), Completion, served.name)
        return await answered(
            request, completion, await asyncio.to_thread(prompts_of, completion, served.tokenizer)
        )

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        completion = await asyncio.to_thread(parsed, await request.body(), Chat, served.name)
        return await answered(
            request, completion, [await asyncio.to_thread(_chat_prompt, served.chat, completion)]
        )

    async def answered(
        request: Request, completion: Completion | Chat, prompts: Sequence[np.ndarray]
    ) -> Response:
        generations = generation_requests(completion, prompts, served.decoding, batcher.pool)
        active = ActiveRequest(batcher, served, completion, generations, sum(map(len, prompts)))
        if completion.stream:
            return _Stream(active, seconds)
        try:
            return await _unless_disconnected(request, active.whole(), seconds)
        finally:
            active.leave()


def _chat_prompt(template: Any, chat: Chat) -> np.ndarray:
    """Return the tokens of a chat."""
    if template is None:
        message = "this model's tokenizer has no template for chats: use /v1/completions."
        raise RefusedRequest(400, message, "messages", "no_chat")
    messages = chat.plain()
    try:
        return np.array(template(messages), np.int64)
    except Exception as problem:
        # Templates raise errors of any class about messages that they do not take.
        raise RefusedRequest(
            400, f"the chat's template refuses these messages: {str(problem)[:500]}", "messages"
        ) from None


class _Stream(StreamingResponse):
    """Events as they come. However it ends, the rows are free after it."""

    def __init__(self, active: ActiveRequest, seconds: float):
        super().__init__(
            active.events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
        self._active, self._seconds = active, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            # The client does not read, and its connection is closed.
            pass
        finally:
            self._active.leave()


async def _unless_disconnected(request: Request, answering: Any, seconds: float) -> Response:
    """Return the answer, or an empty one if the client goes before it."""
    answer = asyncio.ensure_future(answering)
    disconnect = asyncio.ensure_future(_disconnected(request))
    finished, pending = await asyncio.wait(
        {answer, disconnect}, return_when="FIRST_COMPLETED", timeout=seconds
    )
    for task in pending:
        task.cancel()
    if answer in finished:
        return answer.result()
    if not finished:
        raise RefusedRequest(504, f"the answer was not ready within {seconds:g} s: ask for fewer tokens.")
    return Response(status_code=499)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
