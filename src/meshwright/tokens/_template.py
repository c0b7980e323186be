"""A chat as text, by the template of its tokenizer.

A template is a program of whoever made the model, so it runs in Jinja's sandbox, which gives it no access to
Python's objects. It sees plain JSON values alone, its text and its loops are bounded, and its clock stands
still: the same chat gives the same text on any day.

Templates may use what `transformers` gives them: `raise_exception`, `strftime_now`, `tojson`, `break` and
`continue`, and `{% generation %}` around what the assistant wrote.
"""

import datetime
import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshwright.documents import check_unicode
from meshwright.errors import InputError, UsageError
from meshwright.tokens._folder import needed

Span = tuple[int, int]
LONGEST = 1 << 24
"""The largest number of characters that a template may write."""
_MOST_ROUNDS, _MOST_SECONDS = 1_000_000, 5
_NOT_OFFERED = ("batch", "center", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr")
"""Filters of Jinja that may make large values of small ones, or others each time. Chats do not need them."""
_PADDING = ("center", "expandtabs", "ljust", "rjust", "zfill")
_WIDE = re.compile(r"\d{5}|[*]|\{[^{}]*\{")
"""In the text of a format: a width of five digits, or one that is an argument."""
_OPENED, _CLOSED = "\ud800", "\udfff"
"""Marks around generation blocks. Halves of surrogate pairs are in no text."""
_COUNTED, _JOINED, _NESTED = "counted loop", "joined text", "nested value"  # spaces: no template names them


class Template:
    """A template that is ready to render chats.

    Raises:
      UsageError: It is not a template of Jinja, or `jinja2` is not installed.
    """

    def __init__(self, text: str, where: str, date: datetime.datetime):
        self._jinja, self._where = needed("jinja2", f"the chat template of {where}"), where
        for part in ("ext", "sandbox", "visitor"):
            needed(f"jinja2.{part}", where)
        self._budget = _Budget()
        try:
            self._compiled = _environment(self._jinja, self._budget, date).from_string(text)
        except (self._jinja.TemplateError, RecursionError) as error:
            raise UsageError(f"the chat template of {where} is not one of Jinja: {error}.") from None
        self.has_generation = self._budget.has_generation

    def render(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
        """Return the text of a chat.

        Args:
          messages: The messages, plain values of JSON.
          more: More names for the template: `tools`, `add_generation_prompt` and the special tokens.

        Raises:
          InputError: The template refuses the messages, fails on them, or writes what is no Unicode.
        """
        text = self._written(messages, more, "", "")
        try:
            check_unicode(text)
        except ValueError as error:
            raise InputError(f"the chat as its template writes it: {error}.") from None
        return text

    def spans(self, text: str, messages: Sequence[Mapping[str, Any]], **more: Any) -> list[Span]:
        """Return the spans of a chat's text that `{% generation %}` encloses, in order.

        The template writes the chat once more, with marks, because a macro or `{% set %}` may write a block
        long before it becomes part of the text.

        Args:
          text: What `render` returned.
          messages: As in `render`.
          more: As in `render`.

        Raises:
          InputError: The template has such blocks within others, or changes what they enclose.
        """
        first, *rest = self._written(messages, more, _OPENED, _CLOSED).split(_OPENED)
        spans, pieces = [], [first]
        for each in rest:
            start = sum(map(len, pieces))
            inside, closed, outside = each.partition(_CLOSED)
            if not closed:
                raise InputError("the chat template has generation blocks within others.")
            spans.append((start, start + len(inside)))
            pieces += [inside, outside]
        if "".join(pieces) != text:
            raise InputError(
                "the chat template changes what its generation blocks enclose, so their place in the text "
                "cannot be told.\n  Put {% generation %} around what is written at last, outside of filters."
            )
        return spans

    def _written(
        self, messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any], opened: str, closed: str
    ) -> str:
        """Return the text of a chat with marks around its generation blocks."""
        self._budget.begin(opened, closed)
        given = {"documents": None, **more, "messages": [_with_reasoning(each) for each in messages]}
        blocks = []
        try:
            for block in self._compiled.generate(**given):
                blocks.append(block)
                self._budget.wrote(len(block))
        except _RefusedError as error:
            raise InputError(f"the chat template of {self._where} refuses the messages: {error}") from None
        except Exception as error:  # a template may fail in any way
            said = f"{type(error).__name__}: {error}"
            raise InputError(f"the chat template of {self._where} fails on the messages: {said}") from None
        return "".join(blocks)


class _RefusedError(Exception):
    """What a template raises by `raise_exception`."""


class _Budget(threading.local):
    """What a template has written and done in one rendering, and how it marks generation blocks."""

    def __init__(self) -> None:
        self.has_generation = False
        self.begin("", "")

    def begin(self, opened: str, closed: str) -> None:
        self.opened, self.closed = opened, closed
        self.written = self.rounds = 0
        self.until = time.thread_time() + _MOST_SECONDS

    def wrote(self, size: int) -> None:
        self.written += size
        if self.written > LONGEST:
            raise _RefusedError(f"it writes more than {LONGEST:,} characters.")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of a loop of the template."""
        for item in items:
            self.rounds += 1
            if self.rounds > _MOST_ROUNDS:
                raise _RefusedError(f"its loops and calls take more than {_MOST_ROUNDS:,} rounds.")
            yield item

    def called(self) -> None:
        """Count a call of a macro or a method as a round of a loop."""
        for _ in self.counted((None,)):
            if time.thread_time() > self.until:
                raise _RefusedError(f"it takes more than {_MOST_SECONDS} seconds.")

    def marked(self, text: str) -> str:
        """Return the text of a generation block with its marks."""
        return f"{self.opened}{text}{self.closed}"


def _environment(jinja: Any, budget: _Budget, date: datetime.datetime) -> Any:
    def shown(value: Any) -> Any:
        budget.wrote(len(value) if isinstance(value, str) else 0)
        return value

    def raise_exception(message: Any) -> None:
        raise _RefusedError(str(message))

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, **how: Any) -> str:
        plain = json.dumps(value, ensure_ascii=ensure_ascii, **how)
        if indent is None:
            return plain
        _check_size(len(plain) * (1 + _length(indent)))
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **how)

    extensions = [_generation(jinja, budget), "jinja2.ext.loopcontrols"]
    made = _sandbox(jinja, budget)(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=shown
    )
    # The context as an argument keeps Jinja from calling it when it compiles.
    counted = jinja.pass_context(lambda _, items: budget.counted(items))
    nested = jinja.pass_context(lambda _, value: budget.called() or _check_size(_extent(value, {})) or value)
    made.filters = {name: each for name, each in made.filters.items() if name not in _NOT_OFFERED}
    made.filters |= {"tojson": tojson, _COUNTED: counted, _JOINED: _joined, _NESTED: nested}
    made.tests = {**made.tests, "in": lambda item, items: budget.called() or item in items}
    made.filters |= _growing(jinja)
    made.globals.pop("lipsum")
    made.globals |= {"raise_exception": raise_exception, "strftime_now": date.strftime}
    return made


def _sandbox(jinja: Any, budget: _Budget) -> Any:
    class Sandbox(jinja.sandbox.ImmutableSandboxedEnvironment):
        """Jinja's sandbox, which also bounds loops, and operations that make large values of small ones."""

        intercepted_binops = frozenset({"*", "**", "%", "+"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operation(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, *args: Any, **named: Any) -> Any:
            budget.called()
            _check_size(_extent(named, {}) if function is dict else 0)
            method = getattr(function, "__wrapped__", function)  # Jinja wraps `format`
            if isinstance(owner := getattr(method, "__self__", None), str):
                _check_call(method.__name__, owner, [*args, *named.values()])
            return super().call(context, function, *args, **named)

        def _generate(self, source: Any, *rest: Any, **more: Any) -> str:
            return super()._generate(_bounding(jinja).visit(source), *rest, **more)

    return Sandbox


def _bounding(jinja: Any) -> Any:
    """Return what changes the nodes of a template so that loops are counted, and joined texts bounded."""

    def through(filtered: str, node: Any) -> Any:
        return jinja.nodes.Filter(node, filtered, [], [], None, None, lineno=node.lineno)

    class Bounding(jinja.visitor.NodeTransformer):
        def visit_For(self, node: Any) -> Any:  # noqa: N802
            node.iter = through(_COUNTED, node.iter)
            return self.generic_visit(node)

        def visit_List(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            is_plain = all(isinstance(each, jinja.nodes.Const) for each in node.iter_child_nodes())
            return node if is_plain or getattr(node, "ctx", "load") != "load" else through(_NESTED, node)

        visit_Tuple = visit_Dict = visit_List  # noqa: N815

        def visit_Concat(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            return through(_JOINED, jinja.nodes.List(node.nodes, lineno=node.lineno))

    return Bounding()


def _extent(value: Any, known: dict[int, int]) -> int:
    """Return the number of values in nested lists and mappings; `known` has that of those seen before."""
    if not isinstance(value, list | tuple | Mapping):
        return 1
    if id(value) not in known:
        known[id(value)] = LONGEST  # where it is within itself
        inner = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_extent(each, known) for each in inner)
    return known[id(value)]


def _joined(parts: Sequence[Any]) -> str:
    """Return parts as one text, which is what `~` means."""
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _growing(jinja: Any) -> dict[str, Any]:
    """Return filters of Jinja whose result may be far larger than what they are given, with a check of it."""
    filters = dict(jinja.filters.FILTERS)

    def replace(context: Any, text: Any, old: str, new: str, count: int | None = None) -> Any:
        _check_call("replace", str(text), [old, new])
        return filters["replace"](context, text, old, new, count)

    def join(context: Any, items: Iterable[Any], between: str = "", attribute: Any = None) -> Any:
        listed = [*items]
        _check_call("join", str(between), [listed])
        return filters["join"](context, listed, between, attribute)

    def indent(text: str, width: Any = 4, *how: Any, **named: Any) -> str:
        _check_size(_length(width) * (1 + text.count("\n")))
        return filters["indent"](text, width, *how, **named)

    def as_format(text: Any, *args: Any, **named: Any) -> str:
        _check_call("format", str(text), [*args, *named.values()])
        return filters["format"](text, *args, **named)

    context = jinja.pass_eval_context
    return {"replace": context(replace), "join": context(join), "indent": indent, "format": as_format}


def _check_call(name: str, text: str, args: Sequence[Any]) -> None:
    """Refuse a call of a text's method whose result may be far larger than what it is given."""
    if name in ("format_map", "translate"):
        raise _RefusedError(f"it uses .{name}, which is not offered here.")
    if name == "format":
        if _WIDE.search(text):
            raise _RefusedError("it formats a text with a width that is too large, or is an argument.")
        _check_size(len(text) * (1 + sum(len(str(each)) for each in args)))
    elif name in _PADDING:
        _check_size(len(text) + sum(map(_length, args)) * (1 + text.count("\t")))
    elif name == "replace" and len(args) > 1 and all(isinstance(each, str) for each in args[:2]):
        _check_size(len(text) + text.count(args[0]) * len(args[1]))
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _check_size(sum(len(text) + len(str(item)) for item in args[0]))


def _check_size(size: int) -> None:
    if size > LONGEST:
        raise _RefusedError("it makes a value that is too large.")


def _length(value: Any) -> int:
    """Return the number that a value is, or the length of a text."""
    return abs(value) if isinstance(value, int) else len(value) if isinstance(value, str) else 0


def _check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result may be far larger than its operands."""
    is_long = isinstance(left, str | list | tuple), isinstance(right, str | list | tuple)
    sizes = [len(x) if isinstance(x, str | list | tuple) else x for x in (left, right)]
    if operator == "**" or (operator == "%" and is_long[0]):
        raise _RefusedError(f"it uses {operator}, which is not offered here.")
    if operator == "%" or not all(isinstance(size, int) for size in sizes):
        return
    if any(is_long):
        largest = sizes[0] * sizes[1] if operator == "*" else sum(sizes)
    else:
        largest = max(map(abs, sizes)).bit_length() << 16
    _check_size(largest)


def _generation(jinja: Any, budget: _Budget) -> Any:
    class Generation(jinja.ext.Extension):
        """The tag `{% generation %}`, as `transformers` defines it."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            budget.has_generation = True
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

        def _note(self, caller: Any) -> str:
            return budget.marked(caller())

    return Generation


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without empty entries, with its reasoning under all names that templates read."""
    said = {name: value for name, value in message.items() if value is not None}
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((said[name] for name in names if name in said), None)
    return said if reasoning is None else {"thinking": reasoning, **said, "reasoning_content": reasoning}
