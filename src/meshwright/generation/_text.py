"""Texts in place of tokens: the tokenizers that `Generation` and `meshwright sample` take."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

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
      >>> mw.generation.Bytes().encode("é")
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
      >>> mw.generation.Numbers().encode("5 12")
      [5, 12]
    """

    def encode(self, text: str) -> list[int]:
        """Return the numbers in a text.

        Raises:
          UsageError: It has other words than whole numbers.
        """
        try:
            return [int(word) for word in text.replace(",", " ").split()]
        except ValueError:
            raise UsageError(
                f"{text!r} is not a list of tokens such as '5 12', and the run has no tokenizer for texts.\n"
                "  Give one to its experiment: generation=mw.Generation(model, tokenizer=…)."
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

    def decode(self, tokens: Sequence[int]) -> str:
        return self.inner.decode([int(token) for token in tokens])


def tokenizer_of(given: Any) -> Tokenizer:
    """Return a tokenizer, given what users have.

    Args:
      given: An object with `encode` and `decode`, of `tokenizers`, `transformers` or your own; the path of a
        `tokenizer.json` or of the directory of a model with one, which needs `meshwright[tokenizers]`; or
        None for the tokens themselves.

    Raises:
      UsageError: It is none of these, there is no such file, or `tokenizers` is not installed.

    Example:
      >>> mw.generation.tokenizer_of(None).decode([3, 4])
      '3 4 '
    """
    if given is None:
        return Numbers()
    if isinstance(given, str | Path):
        return _HuggingFace(_from_file(Path(given)))
    if not all(callable(getattr(given, name, None)) for name in ("encode", "decode")):
        raise UsageError(
            f"a tokenizer needs encode(text) and decode(tokens); found {type(given).__name__}.\n"
            "  Give one of `tokenizers` or `transformers`, mw.generation.Bytes(), or a tokenizer.json's path."
        )
    return _HuggingFace(given) if type(given).__module__.startswith("tokenizers") else given


def _from_file(path: Path) -> Any:
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        package = importlib.import_module("tokenizers")
    except ModuleNotFoundError:
        raise UsageError(
            f"{file} is read by the package tokenizers, which is not installed.\n"
            "  Install it: pip install 'meshwright[tokenizers]'."
        ) from None
    try:
        return package.Tokenizer.from_str(json.dumps(json.loads(file.read_text(encoding="utf-8"))))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except Exception as error:  # the package raises no class of its own
        raise UsageError(f"{file} is not a tokenizer of the package tokenizers: {error}.") from None


class GrowingText:
    """The text of tokens that come a few at a time.

    Example:
      >>> text = mw.generation.GrowingText(mw.generation.Bytes())
      >>> text.add([97, 195]), text.add([169]), text.rest()
      ('a', 'é', '')
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self.tokens, self._shown = tokenizer, list[int](), ""

    def add(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Return the text that these tokens add. A character of which bytes are missing is kept back."""
        self.tokens += [int(token) for token in tokens]
        return self._new(self._tokenizer.decode(self.tokens).rstrip("\ufffd"))

    def rest(self) -> str:
        """Return what was kept back."""
        return self._new(self._tokenizer.decode(self.tokens))

    def _new(self, whole: str) -> str:
        if self._shown.startswith(whole):
            return ""  # a part is kept back
        # Some tokenizers change what they said: " !" becomes "!" if they clean spaces. What was shown stays.
        pairs = enumerate(zip(whole, self._shown, strict=False))
        same = next((at for at, (now, before) in pairs if now != before), len(self._shown))
        self._shown = whole
        return whole[same:]
