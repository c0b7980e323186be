"""Tokenizers as texts, so that another process can make them again and a digest can name them."""

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshwright.base._internal import not_installed, parse_object, read_file
from meshwright.errors import InputError, UsageError

Encode = Callable[[Sequence[str]], list[np.ndarray]]
"""Function that returns the tokens of each text, int64[k]."""


class Encoder(NamedTuple):
    """The functions that make tokens of documents."""

    encode: Encode
    """The function for texts."""
    chat: Any = None
    """The `Chat` that makes tokens and weights of chats; None if the tokenizer is not of `mw.data.chat`."""


def as_text(tokenizer: Any) -> str:
    """Return a tokenizer as a text that `encoder` understands."""
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer).expanduser()
        path = path / "tokenizer.json" if path.is_dir() else path
        return _of_file(path)
    kind = type(tokenizer)
    # A tokenizer of `mw.data.chat` has this method.
    if callable(getattr(tokenizer, "to_text", None)):
        made_of = json.loads(tokenizer.to_text())
        return json.dumps({**_class(kind), "made_of": made_of})
    # Fast tokenizers of `transformers` have one of `tokenizers` inside.
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if callable(getattr(inner, "to_str", None)):
        return inner.to_str()
    if callable(getattr(tokenizer, "encode", None)) and not getattr(tokenizer, "__dict__", {"": ""}):
        return json.dumps(_class(kind))
    raise UsageError(
        f"a tokenizer of type {kind.__name__} cannot be sent to the process that tokenizes.\n"
        "  Give one of the package tokenizers, a fast one of transformers, or the path of a tokenizer.json."
    )


def _class(kind: type) -> dict[str, str]:
    """Return the names of a class, and a digest of its file, as its code says what the tokens are."""
    module = sys.modules.get(kind.__module__)
    named = {"module": kind.__module__, "class": kind.__qualname__}
    if kind.__module__.partition(".")[0] == __name__.partition(".")[0]:
        # The tokens of our own classes stay the same from version to version.
        return named
    try:
        if kind.__module__ == "__main__" or getattr(module, kind.__qualname__) is not kind:
            raise AttributeError(kind.__qualname__)
        content = module.__spec__.loader.get_data(module.__file__)  # type: ignore[union-attr]
    except (AttributeError, OSError):
        raise UsageError(
            f"the process that tokenizes cannot import the tokenizer's class {kind.__name__} of "
            f"{kind.__module__}.\n"
            "  Move it to a file of its own, at the top level, and import it from there."
        ) from None
    return {**named, "source": hashlib.sha256(content).hexdigest()}


def _of_file(path: Path) -> str:
    """Return the text of a file, which anybody may have made: it must not be taken for a class to import."""
    try:
        text = read_file(path).decode()
        content = parse_object(text)
    except OSError as error:
        raise InputError(f"the tokenizer {path} cannot be read: {error}.") from None
    except ValueError as error:
        raise InputError(f"{path} is no tokenizer of the package tokenizers: {error}.") from None
    if _is_of_program(content):
        raise InputError(
            f"{path} is no tokenizer of the package tokenizers: it has no 'model'.\n"
            "  Give a tokenizer.json, as `save_pretrained` of a fast tokenizer writes it."
        )
    return text


def _is_of_program(content: Mapping[str, Any]) -> bool:
    """Return whether a text names a class of the program. Texts of files always have a model."""
    return "model" not in content


def digest(text: str) -> str:
    """Return a digest of a tokenizer as a text, without its settings of padding and truncation."""
    try:
        content = parse_object(text)
    except ValueError as error:
        raise InputError(f"the tokenizer is not one of the package tokenizers: {error}.") from None
    kept_settings = {name: value for name, value in content.items() if name not in ("padding", "truncation")}
    return hashlib.sha256(json.dumps(kept_settings, sort_keys=True).encode()).hexdigest()[:16]


def encoder(text: str) -> Encoder:
    """Return the functions that make tokens: of many texts at once, on all cores, without special tokens."""
    tokenizer, chat = _tokenizer_from_text(text)
    if not hasattr(tokenizer, "encode_batch_fast"):
        return Encoder(lambda texts: [np.asarray(tokenizer.encode(document), np.int64) for document in texts])

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int64) for encoding in encodings]

    return Encoder(encode, chat)


def token_id(text: str, token: str | int | None) -> int | None:
    """Return the number of a token of the tokenizer."""
    if token is None or isinstance(token, int):
        return token
    tokenizer, _ = _tokenizer_from_text(text)
    number = tokenizer.token_to_id(token) if hasattr(tokenizer, "token_to_id") else None
    if number is None:
        raise UsageError(f"the tokenizer has no token {token!r}. Name one that it has, or give its number.")
    return number


def _tokenizer_from_text(text: str) -> tuple[Any, Any]:
    """Return the tokenizer, and its `Chat`; None if it is not for chats."""
    try:
        content = parse_object(text)
        if _is_of_program(content):
            kind = getattr(importlib.import_module(content["module"]), content["class"])
            if "made_of" not in content:
                return kind(), None
            chat = kind.from_text(json.dumps(content["made_of"]))
            return chat.files.tokenizer, chat
        package = importlib.import_module("tokenizers")
        tokenizer = package.Tokenizer.from_str(text)
    except ModuleNotFoundError as error:
        raise not_installed(error.name or "tokenizers", extra="text", needed_by="the tokenizer") from None
    except Exception as error:
        # The package `tokenizers` raises no class of its own.
        raise InputError(f"the tokenizer is not one of the package tokenizers: {error}.") from None
    # A `tokenizer.json` may ask for truncation and padding, which would lose tokens.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, None
