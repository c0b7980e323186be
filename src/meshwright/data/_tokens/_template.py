"""A chat as text, by the template of its tokenizer.

Another process renders, which is started once and kept (`_render.py`): templates of strangers may not end, or
need all memory. The process is ended then, and started again for the next chat. The template's clock stands
still: the same chat gives the same text on any day.

Templates may use the functions that `transformers` gives them: `raise_exception`, `strftime_now`, `tojson`,
`break` and `continue`, and `{% generation %}` around the assistant's parts. For templates without these
blocks, an assistant's message is the text that the chat gains by it: from the end of the messages before it,
with the prompt for an answer, to its own end.
"""

import atexit
import datetime
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from meshwright import errors
from meshwright.base._internal import check_unicode, import_extra
from meshwright.errors import InputError, UsageError

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
        if not (
            text.startswith(start_text) and text.startswith(end_text) and len(start_text) <= len(end_text)
        ):
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


Chats = Sequence[tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]]
"""Messages, plain values of JSON, and more names for the template: `tools` and the special tokens."""
_MOST_SECONDS = 5
_UNMARKED, _MARKS = ("", ""), ("\ud800", "\udfff")
"""Marks around generation blocks. Halves of surrogate pairs are in no text."""


class Template:
    """A template that is ready to render chats."""

    def __init__(self, text: str, where: str, date: datetime.datetime):
        self._about = f"the chat template of {where}"
        import_extra("jinja2", extra="text", needed_by=self._about)
        self._made_of = {"template": text, "date": date.isoformat()}
        ((head, _),) = self._answers([{"messages": [], "names": {}, "asks": []}])
        self._has_generation: bool = head["has_generation"]

    def render(self, messages: Sequence[Any], names: Mapping[str, Any], *asks: Ask) -> list[str]:
        """Return the texts of parts of a chat, whose messages are plain values of JSON."""
        ((_, texts),) = self._answers([_job(messages, names, asks)])
        return [_checked(text) for text in texts]

    def spans(self, chats: Chats) -> Iterator[tuple[str, list[Span]]]:
        """Yield the text of each chat, and the spans of what the assistant wrote in it, in order.

        `{% generation %}` encloses them; the template then writes the chat once more, with marks, because a
        macro or `{% set %}` may write a block long before it becomes part of the text. In a template that has
        none, an answer is the text that the chat gains by it.
        """
        if self._has_generation:
            wholes = [_job(messages, names, [(len(messages), False)]) for messages, names in chats]
            jobs = [job | {"asks": [*job["asks"], [*job["asks"][0][:2], _MARKS]]} for job in wholes]
            for _, (text, marked) in self._answers(jobs):
                yield _checked(text), spans_by_marks(text, marked, *_MARKS)
            return
        asks_by_chat = [asks_of(messages) for messages, _ in chats]
        jobs = [_job(*chat, asks) for chat, asks in zip(chats, asks_by_chat, strict=True)]
        for (messages, _), asks, (_, texts) in zip(chats, asks_by_chat, self._answers(jobs), strict=True):
            checked = map(_checked, texts)
            yield texts[0], spans_by_prefix(messages, dict(zip(asks, checked, strict=True)))

    def _answers(self, jobs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Yield the other process's facts about the template and each chat, and the texts."""
        request = self._made_of | {"seconds": _MOST_SECONDS, "jobs": jobs}
        for head, texts in _rendered(request):
            if "wrong" in head:
                raise UsageError(f"{self._about} {head['wrong']}")
            if "error" in head:
                raise InputError(f"{self._about} {head['error']}")
            yield head, texts


def _job(messages: Sequence[Any], names: Mapping[str, Any], asks: Sequence[Ask]) -> dict[str, Any]:
    described = [_with_reasoning(message) for message in messages]
    names = {"documents": None, **names}
    return {"messages": described, "names": names, "asks": [(*ask, _UNMARKED) for ask in asks]}


def _checked(text: str) -> str:
    try:
        check_unicode(text)
    except ValueError as error:
        raise InputError(f"the chat as its template writes it: {error}.") from None
    return text


class _Renderer(NamedTuple):
    """A process that renders, and our end of the pipe to it."""

    process: subprocess.Popen[bytes]
    pipe: Connection

    def end(self, *, is_over: bool = False) -> int:
        """End the process, and return how it ended. One that has closed its end is about to end by itself."""
        self.pipe.close()
        if not is_over:
            self.process.kill()
        return self.process.wait()


# Renderers that wait for a request. One that answers is not in the list, so that other threads, and the
# code that runs between two answers, get another.
_idle: list[_Renderer] = []


def _rendered(request: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the answers to the jobs of a request, the last of which may be an error."""
    try:
        renderer = _idle.pop()
    except IndexError:
        renderer = _start()
    try:
        renderer.pipe.send_bytes(json.dumps(request).encode())
        for _ in request["jobs"]:
            answer = renderer.pipe.recv_bytes().decode("utf-8", "surrogatepass")
            head, _, texts = answer.partition("\n")
            about = json.loads(head)
            ends = itertools.accumulate(about["lengths"], initial=0)
            yield about, [texts[start:end] for start, end in itertools.pairwise(ends)]
        _idle.append(renderer)
    except (EOFError, OSError):
        # The renderer has ended by itself: the system ends one that works for too long.
        code = renderer.end(is_over=True)
        late = f"takes more than {_MOST_SECONDS} seconds" if code == -signal.SIGPROF else None
        yield {"error": f"refuses the messages: it {late or f'ended its process ({code})'}."}, []
    except BaseException:
        # Later answers of this renderer would be taken for those of the next request.
        renderer.end()
        raise


def _start() -> _Renderer:
    pipe, far_end = Pipe()
    package = str(Path(errors.__file__).parents[1])
    paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "meshwright.data._tokens._render", str(far_end.fileno())]
    environment, none = {**os.environ, "PYTHONPATH": paths}, subprocess.DEVNULL
    with far_end:
        process = subprocess.Popen(command, env=environment, stdin=none, pass_fds=[far_end.fileno()])
    return _Renderer(process, pipe)


# A forked process starts renderers of its own.
os.register_at_fork(after_in_child=_idle.clear)
atexit.register(lambda: [renderer.end() for renderer in _idle])


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without empty entries, with its reasoning under all names that templates read."""
    fields = {name: value for name, value in message.items() if value is not None}
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((fields[name] for name in names if name in fields), None)
    return fields if reasoning is None else {"thinking": reasoning, **fields, "reasoning_content": reasoning}
