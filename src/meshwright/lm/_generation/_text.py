"""Texts in place of tokens: tokenizers, texts that grow, and the number of bytes of each token."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from meshwright.base._internal import import_extra, parse_object, read_file
from meshwright.data._internal import check_keys
from meshwright.errors import UsageError

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


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
        """Return the text of bytes. Bytes that are no UTF-8 become U+FFFD, and so do tokens above 255."""
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
                "  Give one to its experiment: samples=mw.lm.Generation(model, tokenizer=…)."
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


def tokenizer_of(source: Any) -> Tokenizer:
    """Return a tokenizer, given an object or a path.

    Args:
      source: An object with `encode` and `decode`, of `tokenizers`, `transformers` or your own; the path of a
        `tokenizer.json` or of the directory of a model with one, which needs `meshwright[tokenizers]`; or
        None for the tokens themselves.

    Raises:
      UsageError: It is none of these, there is no such file, or `tokenizers` is not installed.

    Example:
      >>> mw.lm.tokenizer_of(None).decode([3, 4])
      '3 4 '
    """
    if source is None:
        return Numbers()
    if isinstance(source, str | Path):
        return _HuggingFace(_from_file(Path(source)))
    if not all(callable(getattr(source, name, None)) for name in ("encode", "decode")):
        raise UsageError(
            f"a tokenizer needs encode(text) and decode(tokens); found {type(source).__name__}.\n"
            "  Give one of `tokenizers` or `transformers`, mw.lm.Bytes(), or a tokenizer.json's path."
        )
    return _HuggingFace(source) if type(source).__module__.startswith("tokenizers") else source


def _from_file(path: Path) -> Any:
    file = path / "tokenizer.json" if path.is_dir() else path
    package = import_extra("tokenizers", extra="tokenizers", needed_by=str(file))
    try:
        settings = json.loads(read_file(file))
        # These settings are of the batches that the tokenizer was saved with, and would cut prompts off.
        rest = {name: x for name, x in settings.items() if name not in ("truncation", "padding")}
        tokenizer = package.Tokenizer.from_str(json.dumps(rest))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except Exception as error:
        # The package `tokenizers` raises no class of its own.
        raise UsageError(f"{file} is not a tokenizer of the package tokenizers: {error}.") from None
    _check_ends(file, tokenizer)
    return tokenizer


def _check_ends(file: Path, tokenizer: Any) -> None:
    """Check that a tokenizer puts the special tokens around a text that the config beside the file names."""
    path = file.with_name("tokenizer_config.json")
    try:
        config_values = parse_object(read_file(path)) if path.is_file() else {}
    except ValueError as error:
        raise UsageError(f"{path} is not a tokenizer's config: {error}.") from None
    check_keys(path, config_values)
    if str(config_values.get("tokenizer_class")).startswith(("PreTrained", "GPT2")):
        # These classes of `transformers` pass over the flags.
        return
    for kind, ends in (("bos", slice(1)), ("eos", slice(-1, None))):
        token, should_add = config_values.get(f"{kind}_token"), config_values.get(f"add_{kind}_token")
        token = token.get("content") if isinstance(token, dict) else token
        id_ = tokenizer.token_to_id(token) if token and isinstance(should_add, bool) else None
        if id_ is not None and (tokenizer.encode("a").ids[ends] == [id_]) != should_add:
            puts = f"puts {'no ' if should_add else ''}{token} there"
            raise UsageError(
                f"{path} has add_{kind}_token={should_add}, but {file.name} {puts}.\n"
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
        # Tokens are added one after the other, so that none comes after a stop.
        if self._stops:
            return "".join(self._added([token]) for token in tokens)
        return self._added(tokens)

    def rest(self) -> str:
        """Return the text of a character of which bytes are still missing."""
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
        ends = [start + len(stop) for stop in self._stops if (start := self._text.find(stop)) >= 0]
        self.has_ended = bool(ends)
        return new[: len(new) - len(self._text) + min(ends)] if ends else new

    def _new(self, whole: str) -> str:
        if self._shown.startswith(whole):
            # The end of a character is missing, and its beginning is kept back.
            return ""
        # Some tokenizers change earlier text: " !" becomes "!" if they clean spaces. Text that was returned
        # stays.
        pairs = enumerate(zip(whole, self._shown, strict=False))
        same = next(
            (index for index, (new_character, old_character) in pairs if new_character != old_character),
            len(self._shown),
        )
        self._shown = whole
        return whole[same:]


def count_bytes(tokenizer: Any, vocabulary: int) -> np.ndarray:
    """Return the number of bytes of text, in UTF-8, that each token stands for: int32[vocabulary].

    Special tokens, such as the end of a text, stand for no text, and so do tokens that the tokenizer does not
    have. A space that a tokenizer of SentencePiece puts before each text counts as a byte.

    Args:
      tokenizer: A tokenizer as `mw.lm.tokenizer_of` takes it. Tokenizers of bytes, of byte-level BPE (GPT-2,
        LLaMA 3, Qwen) and of SentencePiece (LLaMA 2, Mistral, Gemma, T5) keep all bytes of a text.
      vocabulary: The size of the model's vocabulary.

    Raises:
      UsageError: It is not known how many bytes the tokens have, or the tokenizer has more tokens than the
        vocabulary.

    Example:
      >>> mw.lm.count_bytes(mw.lm.Bytes(), 258)[[97, 195, 257]].tolist()
      [1, 1, 0]
    """
    tokenizer_object = tokenizer_of(tokenizer)
    if isinstance(tokenizer_object, Bytes):
        return (np.arange(vocabulary) < 256).astype(np.int32)
    # `transformers` keeps the tokenizer of `tokenizers` in this attribute, our own class in the other.
    inner: Any = getattr(tokenizer_object, "backend_tokenizer", None) or getattr(
        tokenizer_object, "inner", None
    )
    if not hasattr(inner, "to_str"):
        raise UsageError(
            f"it is not known how many bytes the tokens of {type(tokenizer_object).__name__} stand for.\n"
            "  Give one of `tokenizers` or `transformers`, or make the array yourself: int[vocabulary]."
        )
    settings = json.loads(inner.to_str())
    length_of = _length(settings)
    counts = {number: length_of(text) for text, number in inner.get_vocab(with_added_tokens=False).items()}
    for added in settings.get("added_tokens", ()):
        counts[added["id"]] = 0 if added["special"] else len(added["content"].encode())
    if counts and max(counts) >= vocabulary:
        raise UsageError(
            f"the tokenizer has the token {max(counts)}, but the model's vocabulary has {vocabulary} tokens."
        )
    array = np.zeros(vocabulary, np.int32)
    array[list(counts)] = list(counts.values())
    return array


def _length(settings: dict[str, Any]) -> Callable[[str], int]:
    """Return the function from the text of a token in the vocabulary to its number of bytes."""
    decoder = settings.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        # Byte-level BPE writes one character for each byte.
        return len
    replaces = any(
        step.get("type") == "Replace" and step.get("pattern", {}).get("String") == "▁" for step in steps
    )
    if "Metaspace" in kinds or replaces:
        return lambda text: 1 if _BYTE.fullmatch(text) else len(text.replace("▁", " ").encode())
    raise UsageError(
        f"the tokenizer's decoder is {', '.join(sorted(map(str, kinds)))}, which does not keep all bytes of "
        "a text.\n  Score per token, or make the array yourself: int[vocabulary]."
    )
