"""The process that renders chats by templates of strangers, which may take all time and memory of a process.

A template is a program of whoever made the model. Here it runs in Jinja's sandbox, which gives it no access
to Python's objects, and sees plain JSON values alone. The system ends this process after seconds of work, and
gives it no more than some memory. It ends with the process that asks.
"""

import datetime
import functools
import json
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import jinja2.ext
import jinja2.sandbox

LONGEST = 1 << 24
"""The largest number of characters that a template may write."""
# The most memory, of which Python and Jinja need a tenth.
_NBYTES = 1 << 29
_LONGEST_ERROR = 2000


class _RefusedError(Exception):
    """The error that a template raises by `raise_exception`."""


class _Generation(jinja2.ext.Extension):
    """The tag `{% generation %}`, as `transformers` defines it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        self.environment.has_generation = True  # type: ignore[missing-attribute]
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Any) -> str:
        opened, closed = self.environment.marks  # type: ignore[missing-attribute]
        return f"{opened}{caller()}{closed}"


@functools.lru_cache(64)
def _compiled(text: str, date: str) -> tuple[Any, Any]:
    """Return the environment of a template, and the template."""

    def raise_exception(message: Any) -> None:
        raise _RefusedError(str(message))

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment: Any = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.has_generation = False
    environment.filters["tojson"] = tojson
    # The same chat must give the same text.
    environment.filters.pop("random")
    environment.globals.pop("lipsum")
    day = datetime.datetime.fromisoformat(date)
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": day.strftime}
    return environment, environment.from_string(text)


def _blocks(template: Any, names: Mapping[str, Any]) -> Iterator[str]:
    num_written = 0
    for block in template.generate(names):
        num_written += len(block)
        if num_written > LONGEST:
            raise _RefusedError(f"it writes more than {LONGEST:,} characters.")
        yield block


def _answer(request: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return whether the template has generation blocks, or what is wrong, and the texts of a chat."""
    # The system ends this process after so many seconds of work.
    signal.setitimer(signal.ITIMER_PROF, request["seconds"])
    try:
        environment, template = _compiled(request["template"], request["date"])
    except (jinja2.TemplateError, RecursionError, MemoryError) as error:
        return {"wrong": f"is not one of Jinja: {error or type(error).__name__}."[:_LONGEST_ERROR]}, []
    texts = []
    try:
        for number, reply, marks in job["asks"]:
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])
            environment.marks = marks
            messages = job["messages"][:number]
            names = {**job["names"], "add_generation_prompt": reply, "messages": messages}
            texts.append("".join(_blocks(template, names)))
    except _RefusedError as error:
        return {"error": f"refuses the messages: {error}"[:_LONGEST_ERROR]}, []
    except MemoryError:
        return {"error": "refuses the messages: it takes too much memory."}, []
    except Exception as error:
        # A template may fail in any way.
        return {"error": f"fails on the messages: {type(error).__name__}: {error}"[:_LONGEST_ERROR]}, []
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"has_generation": environment.has_generation}, texts


def main(descriptor: int) -> None:
    """Answer requests, each a template with chats, until the other side is gone."""
    # Ctrl-C ends the process that asks, and this one after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_NBYTES, _NBYTES))
    with Connection(descriptor) as other:
        while True:
            try:
                request = json.loads(other.recv_bytes())
            except EOFError:
                return
            for job in request["jobs"]:
                head, texts = _answer(request, job)
                # The texts are not in JSON, which would join two halves of a surrogate pair.
                head["lengths"] = [*map(len, texts)]
                answer = json.dumps(head) + "\n" + "".join(texts)
                other.send_bytes(answer.encode("utf-8", "surrogatepass"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
