"""The application: OpenAI's routes, and the page for a browser."""

import asyncio
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from meshwright.lm._server._active_requests import ActiveRequest
from meshwright.lm._server._answers import error
from meshwright.lm._server._batcher import Batcher, QueueFull
from meshwright.lm._server._requests import Chat, Completion, RefusedRequest, parsed, prompts_of, generation_requests

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'"
)


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
        return await answered(request, completion, await asyncio.to_thread(prompts_of, completion, served.tokenizer))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        completion = await asyncio.to_thread(parsed, await request.body(), Chat, served.name)
        return await answered(request, completion, [await asyncio.to_thread(_chat_prompt, served.chat, completion)])

    async def answered(request: Request, completion: Completion | Chat, prompts: Sequence[np.ndarray]) -> Response:
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
    except Exception as problem:  # templates raise what they like about messages that they do not take
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
            pass  # the client does not read: its connection is closed
        finally:
            self._active.leave()


async def _unless_gone(request: Request, answering: Any, seconds: float) -> Response:
    """Return the answer, or an empty one if the client goes before it."""
    answer = asyncio.ensure_future(answering)
    disconnect = asyncio.ensure_future(_disconnected(request))
    finished, pending = await asyncio.wait({answer, disconnect}, return_when="FIRST_COMPLETED", timeout=seconds)
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
