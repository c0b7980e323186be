"""Texts in place of tokens: the tokenizers that `Generation` and `meshwright sample` take."""

import inspect
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from meshwright.base._internal import import_extra, parse_object, read_file
from meshwright.data._internal import check_keys
from meshwright.errors import UsageError


class Tokenizer(Protocol):
    """A pair of functions between texts and tokens."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        ...


class Bytes:
    """The tokenizer of models of bytes: a token is a byte of the text in UTF-8.

    Example:
      >>> mw.lm.Bytes().encode("é")
      [195, 169]
    """

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of bytes; what is no UTF-8 becomes U+FFFD, and so do tokens above 255."""
        return b"".join(bytes([x]) if 0 <= x < 256 else b"\xff" for x in map(int, tokens)).decode(
            errors="replace"
        )


class Numbers:
    """The tokens themselves as text, for models without a tokenizer.

    Example:
      >>> mw.lm._internal.Numbers().encode("5 12")
      [5, 12]
    """

    def encode(self, text: str) -> list[int]:
        """Return the numbers in a text."""
        try:
            return [int(word) for word in text.replace(",", " ").split()]
        except ValueError:
            raise UsageError(
                f"{text!r} is not a list of tokens such as '5 12', and the run has no tokenizer for texts.\n"
                "  Give one to its experiment: generation=mw.engine.Generation(model, tokenizer=…)."
            ) from None

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the numbers with spaces between them."""
        return "".join(f"{int(token)} " for token in tokens)


class _HuggingFace:
    """A tokenizer of the package `tokenizers`, whose `encode` returns an object with `ids`."""

    def __init__(self, inner: Any):
        self.inner = inner

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self.inner.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.inner.decode([int(token) for token in tokens], skip_special_tokens=skip_special_tokens)


def tokenizer_of(given: Any) -> Tokenizer:
    """Return a tokenizer, given what users have.

    Args:
      given: An object with `encode` and `decode`, of `tokenizers`, `transformers` or your own; the path of a
        `tokenizer.json` or of the directory of a model with one, which needs `meshwright[tokenizers]`; or
        None for the tokens themselves.

    Raises:
      UsageError: It is none of these, there is no such file, or `tokenizers` is not installed.

    Example:
      >>> mw.lm.tokenizer_of(None).decode([3, 4])
      '3 4 '
    """
    if given is None:
        return Numbers()
    if isinstance(given, str | Path):
        return _HuggingFace(_from_file(Path(given)))
    if not all(callable(getattr(given, name, None)) for name in ("encode", "decode")):
        raise UsageError(
            f"a tokenizer needs encode(text) and decode(tokens); found {type(given).__name__}.\n"
            "  Give one of `tokenizers` or `transformers`, mw.lm.Bytes(), or a tokenizer.json's path."
        )
    return _HuggingFace(given) if type(given).__module__.startswith("tokenizers") else given


def _from_file(path: Path) -> Any:
    file = path / "tokenizer.json" if path.is_dir() else path
    package = import_extra("tokenizers", extra="tokenizers", what=str(file))
    try:
        described = json.loads(read_file(file))
        # They are of the batches that it was saved with, and would cut prompts off.
        rest = {name: x for name, x in described.items() if name not in ("truncation", "padding")}
        tokenizer = package.Tokenizer.from_str(json.dumps(rest))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except Exception as error:  # the package raises no class of its own
        raise UsageError(f"{file} is not a tokenizer of the package tokenizers: {error}.") from None
    _check_ends(file, tokenizer)
    return tokenizer


def _check_ends(file: Path, tokenizer: Any) -> None:
    """Check that a tokenizer puts those tokens around a text that the config beside it says."""
    config = file.with_name("tokenizer_config.json")
    try:
        said = parse_object(read_file(config)) if config.is_file() else {}
    except ValueError as error:
        raise UsageError(f"{config} is not a tokenizer's config: {error}.") from None
    check_keys(config, said)
    if str(said.get("tokenizer_class")).startswith(("PreTrained", "GPT2")):
        return  # which pass over these flags
    for kind, at in (("bos", slice(1)), ("eos", slice(-1, None))):
        token, wanted = said.get(f"{kind}_token"), said.get(f"add_{kind}_token")
        token = token.get("content") if isinstance(token, dict) else token
        id_ = tokenizer.token_to_id(token) if token and isinstance(wanted, bool) else None
        if id_ is not None and (tokenizer.encode("a").ids[at] == [id_]) != wanted:
            puts = f"puts {'no ' if wanted else ''}{token} there"
            raise UsageError(
                f"{config} has add_{kind}_token={wanted}, but {file.name} {puts}.\n"
                "  Make them agree: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
            )


def encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text without the special tokens that a tokenizer may put around it."""
    has_choice = "add_special_tokens" in inspect.signature(tokenizer.encode).parameters
    return list(tokenizer.encode(text, **({"add_special_tokens": False} if has_choice else {})))


def stop_sequences(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of texts that end a result; of texts that are others to the tokenizer, none.

    A text may also come in other tokens, or end within one: look for it in the text, too.
    """
    has_choice = "skip_special_tokens" in inspect.signature(tokenizer.decode).parameters
    whole: dict[str, Any] = {"skip_special_tokens": False} if has_choice else {}
    pairs = [(text, tuple(encode_plain(tokenizer, text))) for text in texts if text]
    return tuple(dict.fromkeys(x for text, x in pairs if text in tokenizer.decode(x, **whole)))


class GrowingText:
    """The text of tokens that come a few at a time.

    Args:
      tokenizer: The tokenizer.
      stops: Texts, after the first of which the text ends.

    Attributes:
      tokens: The tokens of the text.
      has_ended: Whether one of `stops` came.

    Example:
      >>> text = mw.lm.GrowingText(mw.lm.Bytes())
      >>> text.add([97, 195]), text.add([169]), text.rest()
      ('a', 'é', '')
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()):
        self._tokenizer, self._stops, self._text, self._shown = tokenizer, stops, "", ""
        self.tokens, self.has_ended = list[int](), False

    def add(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Return the text that these tokens add. A character of which bytes are missing is kept back."""
        if self._stops:  # one after the other, so that no token comes after a stop
            return "".join(self._added([token]) for token in tokens)
        return self._added(tokens)

    def rest(self) -> str:
        """Return what was kept back."""
        return self._up_to_a_stop(self._new(self._tokenizer.decode(self.tokens)))

    def _added(self, tokens: Sequence[int] | np.ndarray) -> str:
        if self.has_ended:
            return ""
        self.tokens += [int(token) for token in tokens]
        return self._up_to_a_stop(self._new(self._tokenizer.decode(self.tokens).rstrip("\ufffd")))

    def _up_to_a_stop(self, new: str) -> str:
        if self.has_ended:
            return ""
        self._text += new
        ends = [at + len(stop) for stop in self._stops if (at := self._text.find(stop)) >= 0]
        self.has_ended = bool(ends)
        return new[: len(new) - len(self._text) + min(ends)] if ends else new

    def _new(self, whole: str) -> str:
        if self._shown.startswith(whole):
            return ""  # a part is kept back
        # Some tokenizers change what they said: " !" becomes "!" if they clean spaces. What was shown stays.
        pairs = enumerate(zip(whole, self._shown, strict=False))
        same = next((at for at, (now, before) in pairs if now != before), len(self._shown))
        self._shown = whole
        return whole[same:]
