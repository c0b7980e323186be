"""A chat as text, by the template of its tokenizer.

Another process renders, which is started once and kept (`_render.py`): templates of strangers may not end, or
need all memory. Theirs is ended then, and started again for the next chat. The template's clock stands still:
the same chat gives the same text on any day.

Templates may use what `transformers` gives them: `raise_exception`, `strftime_now`, `tojson`, `break` and
`continue`, and `{% generation %}` around what the assistant wrote.
"""

import atexit
import datetime
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from meshwright import errors
from meshwright.base._internal import check_unicode, import_extra
from meshwright.data._tokens._spans import Ask, Span, asks_of, spans_by_marks, spans_by_prefix
from meshwright.errors import InputError, UsageError

Chats = Sequence[tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]]
"""Messages, plain values of JSON, and more names for the template: `tools` and the special tokens."""
_MOST_SECONDS = 5
_UNMARKED, _MARKS = ("", ""), ("\ud800", "\udfff")
"""Marks around generation blocks. Halves of surrogate pairs are in no text."""


class Template:
    """A template that is ready to render chats."""

    def __init__(self, text: str, where: str, date: datetime.datetime):
        self._about = f"the chat template of {where}"
        import_extra("jinja2", extra="text", what=self._about)
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
        none, an answer is what the text gains by it.
        """
        if self._has_generation:
            wholes = [_job(messages, names, [(len(messages), False)]) for messages, names in chats]
            jobs = [job | {"asks": [*job["asks"], [*job["asks"][0][:2], _MARKS]]} for job in wholes]
            for _, (text, marked) in self._answers(jobs):
                yield _checked(text), spans_by_marks(text, marked, *_MARKS)
            return
        asked = [asks_of(messages) for messages, _ in chats]
        jobs = [_job(*chat, asks) for chat, asks in zip(chats, asked, strict=True)]
        for (messages, _), asks, (_, texts) in zip(chats, asked, self._answers(jobs), strict=True):
            each = map(_checked, texts)
            yield texts[0], spans_by_prefix(messages, dict(zip(asks, each, strict=True)))

    def _answers(self, jobs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Yield what the other process says of the template and each chat, and the texts."""
        request = self._made_of | {"seconds": _MOST_SECONDS, "jobs": jobs}
        for head, texts in _renderer.answers(request):
            if "wrong" in head:
                raise UsageError(f"{self._about} {head['wrong']}")
            if "error" in head:
                raise InputError(f"{self._about} {head['error']}")
            yield head, texts


def _job(messages: Sequence[Any], names: Mapping[str, Any], asks: Sequence[Ask]) -> dict[str, Any]:
    told = [_with_reasoning(each) for each in messages]
    names = {"documents": None, **names}
    return {"messages": told, "names": names, "asks": [(*ask, _UNMARKED) for ask in asks]}


def _checked(text: str) -> str:
    try:
        check_unicode(text)
    except ValueError as error:
        raise InputError(f"the chat as its template writes it: {error}.") from None
    return text


class _Renderer:
    """The process that renders, which is started when it is first asked."""

    def __init__(self) -> None:
        self._process: Any = None
        self._lock = threading.Lock()

    def answers(self, request: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Yield the answers to the jobs of a request, the last of which may be an error."""
        with self._lock:
            if self._process is None:
                self._start()
            try:
                self._other.send_bytes(json.dumps(request).encode())
                for _ in request["jobs"]:
                    answer = self._other.recv_bytes().decode("utf-8", "surrogatepass")
                    head, _, texts = answer.partition("\n")
                    about = json.loads(head)
                    ends = itertools.accumulate(about["lengths"], initial=0)
                    yield about, [texts[start:end] for start, end in itertools.pairwise(ends)]
            except (EOFError, OSError):
                code = self._end(is_over=True)
                late = f"takes more than {_MOST_SECONDS} seconds" if code == -signal.SIGPROF else None
                yield {"error": f"refuses the messages: it {late or f'ended its process ({code})'}."}, []
            except BaseException:  # its further answers would be taken for those of the next
                self._end()
                raise

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._end()

    def _start(self) -> None:
        self._other, there = Pipe()
        package = str(Path(errors.__file__).parents[1])
        paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "meshwright.data._tokens._render", str(there.fileno())]
        environment, none = {**os.environ, "PYTHONPATH": paths}, subprocess.DEVNULL
        with there:
            self._process = subprocess.Popen(command, env=environment, stdin=none, pass_fds=[there.fileno()])

    def _end(self, *, is_over: bool = False) -> int:
        """End the process, and return how it ended. One that has closed its end is about to end by itself."""
        process, self._process = self._process, None
        self._other.close()
        if not is_over:
            process.kill()
        return process.wait()


_renderer = _Renderer()


def _forget() -> None:
    """Let a forked process start its own."""
    global _renderer
    _renderer = _Renderer()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _renderer.close())


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without empty entries, with its reasoning under all names that templates read."""
    said = {name: value for name, value in message.items() if value is not None}
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((said[name] for name in names if name in said), None)
    return said if reasoning is None else {"thinking": reasoning, **said, "reasoning_content": reasoning}
