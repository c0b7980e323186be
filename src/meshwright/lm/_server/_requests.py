"""The requests of OpenAI's protocol, read and checked.

Source: platform.openai.com/docs/api-reference, "Completions" and "Chat". `top_k` and `min_p` are those of
vLLM.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from meshwright.base._internal import parse_object
from meshwright.errors import MeshwrightError
from meshwright.lm._generation._decoding import Decoding
from meshwright.lm._generation._slots import GenerationRequest, Pool
from meshwright.lm._generation._text import Tokenizer

_MOST_ROWS = 16
_Stop = Annotated[str, Field(min_length=1, max_length=200)]
# `fail_fast`: otherwise each wrong item of hundreds of thousands is an error of its own.
_Tokens = Annotated[list[int], Field(fail_fast=True)]
_Several = Annotated[list[str], Field(fail_fast=True, max_length=_MOST_ROWS)]
_SeveralTokens = Annotated[list[_Tokens], Field(fail_fast=True, max_length=_MOST_ROWS)]
_Parts = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
# Fields that this server does not have, and the values by which a client asks for nothing.
_NEUTRAL: Mapping[str, Sequence[Any]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": ([],),
    "ignore_eos": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}


class RefusedRequest(Exception):  # noqa: N818 - the client's fault, not the program's
    """A request that gets an answer of OpenAI's shape for errors."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


class _Options(BaseModel):
    include_usage: bool = False


class _Common(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False, extra="ignore")

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    n: Annotated[int, BeforeValidator(lambda n: 1 if n is None else n)] = Field(1, ge=1, le=_MOST_ROWS)
    seed: int | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=4)] | None = None
    stream: bool | None = False
    stream_options: _Options | None = None

    @property
    def stops(self) -> list[str]:
        """Return the texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class Completion(_Common):
    """A request for what follows texts."""

    prompt: str | _Several | _Tokens | _SeveralTokens


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str = Field(max_length=64)
    content: str | _Parts | None = None


class Chat(_Common):
    """A request for the next message of a chat."""

    messages: list[_Message] = Field(fail_fast=True, min_length=1, max_length=1000)

    def plain(self) -> list[dict[str, Any]]:
        """Return the messages with their texts."""
        return [{**message.model_dump(), "content": _text(message.content)} for message in self.messages]


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in content):
        raise RefusedRequest(
            400, "a message has a part that is no text, and the model reads texts only.", "messages"
        )
    return "".join(part["text"] for part in content)


Request = TypeVar("Request", Completion, Chat)


def parsed(body: bytes, kind: type[Request], served: str) -> Request:
    """Return the request in a body."""
    try:
        document = parse_object(body)
        # Encoding raises an error if half of a surrogate pair is in a text.
        json.dumps(document, ensure_ascii=False).encode()
    except ValueError as error:
        raise RefusedRequest(400, f"the body is not a JSON object: {str(error)[:200]}") from None
    for name, neutral in _NEUTRAL.items():
        if document.get(name) is not None and document[name] not in neutral:
            raise RefusedRequest(
                400, f"this server does not have `{name}`: leave it out.", name, "unsupported"
            )
    try:
        request = kind.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        name = ".".join(map(str, problems[0]["loc"][:1]))
        message = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:3]
        )
        raise RefusedRequest(400, message, name) from None
    if request.model not in (None, served):
        raise RefusedRequest(
            404, f"there is no model of this name; there is {served!r}.", "model", "model_not_found"
        )
    return request


def prompts_of(request: Completion, tokenizer: Tokenizer) -> list[np.ndarray]:
    """Return the prompts of a request as tokens."""
    prompts = request.prompt
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        prompts = [prompts]
    if not prompts or len(prompts) * request.n > _MOST_ROWS:
        raise RefusedRequest(
            400,
            f"expected 1 to {_MOST_ROWS} answers in a request; found {len(prompts) * request.n}.",
            "prompt",
        )
    return [
        _encoded(prompt, tokenizer) if isinstance(prompt, str) else np.array(prompt) for prompt in prompts
    ]


def _encoded(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """Return the tokens of a text."""
    try:
        return np.array(tokenizer.encode(text), np.int64)
    except MeshwrightError as error:
        raise RefusedRequest(400, str(error), "prompt") from None


def generation_requests(
    request: Completion | Chat, prompts: Sequence[np.ndarray], decoding: Decoding, pool: Pool
) -> list[GenerationRequest]:
    """Return the requests for the pool: `n` rows for each prompt."""
    max_tokens = request.max_completion_tokens or request.max_tokens
    drawn = {
        "temperature": decoding.temperature if request.temperature is None else request.temperature,
        "top_k": decoding.top_k if request.top_k is None else request.top_k if request.top_k > 0 else None,
        "top_p": (decoding.top_p or 1.0) if request.top_p is None else request.top_p,
        "min_p": (decoding.min_p or 0.0) if request.min_p is None else request.min_p,
    }
    seed = secrets.randbits(32) if request.seed is None else request.seed
    rows = []
    for prompt in prompts:
        new = min(max_tokens or decoding.max_new_tokens, _checked(prompt, max_tokens, pool))
        rows += [
            GenerationRequest(prompt.astype(np.int32), new, **drawn, seed=seed + i) for i in range(request.n)
        ]
    return rows


def _checked(prompt: np.ndarray, max_tokens: int | None, pool: Pool) -> int:
    """Return how many new tokens a prompt can get."""
    if not prompt.size:
        raise RefusedRequest(400, "a prompt has no tokens: give one at least.", "prompt")
    if prompt.min() < 0 or prompt.max() >= pool.vocabulary:
        raise RefusedRequest(
            400, f"a token of a prompt is not one of the model: 0 to {pool.vocabulary - 1}.", "prompt"
        )
    limit = pool.max_new_tokens(len(prompt))
    if limit < (max_tokens or 1):
        raise RefusedRequest(
            400,
            f"the prompt has {len(prompt)} tokens, which leaves room for {max(limit, 0)} new ones; asked for "
            f"{max_tokens or 1}.",
            "max_tokens" if max_tokens and limit > 0 else "prompt",
            "context_length_exceeded",
        )
    return limit
