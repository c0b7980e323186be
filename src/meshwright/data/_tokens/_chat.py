"""Chats as tokens, with a weight for each: 1 for the assistant's tokens, and 0 for the rest."""

import datetime
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from meshwright.base._internal import check_unicode, documented, import_extra
from meshwright.data._tokens._folder import TEMPLATE, Files, read_folder
from meshwright.data._tokens._template import ASSISTANT, Ask, Template, weights_of
from meshwright.errors import InputError, MeshwrightError, UsageError

Messages = Sequence[Mapping[str, Any]]
DATE = "2026-01-01"
_DEEPEST = 32
# The number of chats whose texts are made at once.
_TOGETHER = 64


@documented
@dataclass(frozen=True)
class Encoded:
    """A text as tokens."""

    tokens: list[int]
    """The tokens."""
    token_weights: list[int]
    """The weight of each token in the loss: 1 for the assistant's, which are to be learned, otherwise 0."""


def chat(path: str | Path, *, date: str = DATE) -> "Chat":
    r"""Return a `Chat`, which makes tokens of chats by a tokenizer's template. It needs `meshwright[text]`.

    Args:
      path: The folder of a tokenizer or of a model with one: `tokenizer.json`, `tokenizer_config.json`, and
        the template in that or in `chat_template.jinja`.
      date: The day that a template gets if it asks for today's, YYYY-MM-DD. It is a setting, so that the
        same chat gives the same tokens on any day.

    Raises:
      UsageError: There is no tokenizer, a file is damaged, the date is not one, or a package is missing.

    Example:
      >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
      >>> template += "{% if add_generation_prompt %}<assistant>{% endif %}"
      >>> settings = {"vocab_size": 300, "chat_template": template}
      >>> chats = mw.data.chat(mw.data.train_tokenizer(["Who? What? I do."], "tokens", **settings))
      >>> messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I do."}]
      >>> chats.text(messages)
      '<user>Who?\n<assistant>I do.\n'
      >>> encoded = chats.encode(messages)
      >>> pairs = zip(encoded.tokens, encoded.token_weights)
      >>> chats.decode([token for token, weight in pairs if weight])
      'I do.\n'
    """
    return Chat(read_folder(path), date=date)


class Chat:
    """A tokenizer with a template for chats, as `mw.data.chat` makes it."""

    def __init__(self, files: Files, *, date: str = DATE):
        try:
            self._date = datetime.datetime.fromisoformat(date)
        except ValueError:
            raise UsageError(f"date={date!r} is not a day such as '{DATE}'.") from None
        self.files = files
        self._templates: dict[str, Template] = {}

    def to_text(self) -> str:
        """Return this tokenizer as JSON, from which `from_text` makes it again."""
        made_of = {
            "tokenizer": json.loads(self.files.tokenizer.to_str()),
            "special": dict(self.files.special),
            "templates": dict(self.files.templates),
            "date": self._date.date().isoformat(),
        }
        return json.dumps(made_of)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the tokenizer whose `to_text` returned this text."""
        made_of = json.loads(text)
        package = import_extra("tokenizers", extra="text", needed_by="a chat")
        tokenizer = package.Tokenizer.from_str(json.dumps(made_of["tokenizer"]))
        files = Files(Path("the tokenizer"), tokenizer, made_of["special"], made_of["templates"])
        return cls(files, date=made_of["date"])

    @property
    def has_template(self) -> bool:
        """Return whether the tokenizer has a template for chats."""
        return bool(self.files.templates)

    def text(self, messages: Messages, *, tools: Sequence[Any] | None = None, reply: bool = False) -> str:
        """Return a chat as text."""
        (text,) = self._rendered(_checked(messages), _plain(tools, 0), (len(messages), reply))
        return text

    def encode(self, messages: Messages, *, tools: Sequence[Any] | None = None) -> Encoded:
        """Return the tokens of a chat, and their weights: 1 for those that the assistant wrote.

        The template marks these, if it has `{% generation %}`. Otherwise an answer is the text that the chat
        gains by it after the prompt for an answer.
        """
        (encoded,) = self.encode_each([(messages, tools)])
        return encoded

    def encode_each(self, chats: Iterable[tuple[Messages, Sequence[Any] | None]]) -> Iterator[Encoded]:
        """Yield the result of `encode` for each chat, in less time: rendering and encoding overlap."""
        remaining = iter(chats)
        while some := [*itertools.islice(remaining, _TOGETHER)]:
            ready, failure = [], None
            try:
                for messages, tools in some:
                    checked, offered = _checked(messages), _plain(tools, 0)
                    ready.append((self._template(offered), checked, self._names(offered)))
            except MeshwrightError as error:
                # Chats before the one with the error are yielded first.
                failure = error
            # Chats with and without tools may have other templates; those of one are rendered together.
            for template, group in itertools.groupby(ready, lambda ready_chat: ready_chat[0]):
                for text, spans in template.spans([ready_chat[1:] for ready_chat in group]):
                    yield self._encoded(text, spans)
            if failure is not None:
                raise failure

    def answer(self, prompt: Any, completion: Any, *, tools: Sequence[Any] | None = None) -> Encoded:
        """Return the tokens of a prompt and its completion, of which only the completion counts."""
        if isinstance(prompt, str) and isinstance(completion, str):
            end = str(self.files.special.get("eos_token", ""))
            whole = prompt + completion + ("" if completion.endswith(end) else end)
            return self._encoded(whole, [(len(prompt), len(whole))], special=True)
        if isinstance(prompt, str) or isinstance(completion, str):
            raise InputError("prompt and completion must both be texts, or both be messages.")
        prompt_messages, messages = _checked(prompt), _checked([*prompt, *completion])
        offered = _plain(tools, 0)
        prompt_text, text = self._rendered(
            messages, offered, (len(prompt_messages), True), (len(messages), False)
        )
        if not text.startswith(prompt_text):
            raise InputError("the chat template writes the prompt differently if the completion follows.")
        return self._encoded(text, [(len(prompt_text), len(text))])

    def plain(self, text: str) -> Encoded:
        """Return the tokens of a text that is no chat, with the tokens that begin and end one; all count."""
        end = str(self.files.special.get("eos_token", ""))
        whole = text if text.endswith(end) else text + end
        return self._encoded(whole, [(0, len(whole))], special=True)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special tokens among them."""
        return self.files.tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False)

    def _encoded(self, text: str, spans: Sequence[tuple[int, int]], *, special: bool = False) -> Encoded:
        try:
            check_unicode(text)
        except ValueError as error:
            raise InputError(f"the text cannot be tokenized: {error}.") from None
        encoding = self.files.tokenizer.encode(text, add_special_tokens=special)
        tokens, weights = list(encoding.ids), weights_of(encoding.offsets, spans)
        end = self.files.tokenizer.token_to_id(str(self.files.special.get("eos_token", "")))
        if special and len(tokens) > 1 and tokens[-1] == tokens[-2] == end:
            # The tokenizer adds a token for the end by itself, so one of the two goes.
            tokens, weights = tokens[:-1], weights[:-1]
        return Encoded(tokens, weights)

    def _rendered(self, messages: Messages, tools: Any, *asks: Ask) -> list[str]:
        return self._template(tools).render(messages, self._names(tools), *asks)

    def _names(self, tools: Any) -> dict[str, Any]:
        return {**self.files.special, "tools": tools}

    def _template(self, tools: Any) -> Template:
        texts = self.files.templates
        name = "tool_use" if tools is not None and "tool_use" in texts else "default"
        if name not in texts:
            names = f"it has only {', '.join(texts)}" if texts else "it has none"
            raise UsageError(
                f"the tokenizer in {self.files.path} needs a default template for chats; {names}.\n"
                f"  Write it to {TEMPLATE} there, or give rows of texts: prompt and completion."
            )
        if name not in self._templates:
            self._templates[name] = Template(texts[name], str(self.files.path), self._date)
        return self._templates[name]


def _checked(messages: Any) -> list[dict[str, Any]]:
    is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
    if not is_list or not messages:
        raise InputError(f"messages must be a list with one message or more; found {messages!r:.60}.")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(
                f'message {number} is not one: expected {{"role": "user", "content": "…"}}, found '
                f"{message!r:.60}."
            )
        if message.get("content") is None and not (message["role"] == ASSISTANT and len(message) > 1):
            raise InputError(f"message {number}, of {message['role']}, has no content.")
    return _plain(list(messages), 0)


def _plain(value: Any, depth: int) -> Any:
    """Return a copy of a value that has JSON's types alone, as a template must get no other objects."""
    if depth > _DEEPEST:
        raise InputError(f"messages are nested more than {_DEEPEST} levels deep.")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    raise InputError(f"messages hold a value of type {type(value).__name__}, which JSON does not have.")
