"""New tokenizers from texts, by the package `tokenizers`, in a folder that `transformers` reads, too."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from meshwright.base._internal import import_extra, local_path, write_whole
from meshwright.data._corpus._documents import documents
from meshwright.data._tokens._folder import CONFIG, TEMPLATE, TOKENIZER
from meshwright.errors import UsageError

KINDS = ("bpe", "unigram", "wordpiece")
"""The kinds of tokenizers that can be trained."""
_UNKNOWN = "<unk>"


def train_tokenizer(
    texts: Iterable[str] | str | Path,
    directory: str | Path,
    *,
    vocab_size: int,
    kind: str = "bpe",
    special_tokens: Sequence[str] = (),
    eos_token: str = "<|endoftext|>",
    chat_template: str | None = None,
) -> Path:
    """Train a tokenizer on texts, write its folder, and return its path. It needs `meshwright[text]`.

    The folder has `tokenizer.json` and `tokenizer_config.json`, for `mw.data.chat`, `mw.lm.tokenizer_of`
    and the `PreTrainedTokenizerFast` of `transformers`. The same texts give the same tokenizer.

    Args:
      texts: The texts, which are read once. Or a path or pattern of files, whose documents are the texts, as
        `mw.data.documents` reads them.
      directory: The folder to write; it is created if needed.
      vocab_size: The largest number of tokens, special tokens included. "bpe" and "unigram" have at least
        those of the 256 bytes, from which any text can be made, "wordpiece" those of the texts' letters.
      kind: "bpe", pairs of bytes that are merged, as of GPT-2; "unigram", pieces by their probability, as of
        T5; or "wordpiece", pieces of words, as of BERT, which has a token for unknown pieces.
      special_tokens: More special tokens, such as the marks of a chat's roles.
      eos_token: The token that ends a text.
      chat_template: A template of Jinja for chats, which is written beside the tokenizer.

    Raises:
      UsageError: `kind` is not known, `vocab_size` is too small, there is no text, the folder has a tokenizer
        already, or `tokenizers` is not installed.

    Example:
      >>> folder = mw.data.train_tokenizer(["the cat", "the hat"], "small", vocab_size=270)
      >>> tokenizer = mw.lm.tokenizer_of(folder)
      >>> tokenizer.decode(tokenizer.encode("the bat"))
      'the bat'
    """
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r} is not known; there are {', '.join(KINDS)}.")
    special = list(dict.fromkeys([eos_token, *([_UNKNOWN] if kind == "wordpiece" else []), *special_tokens]))
    least = len(special) + (0 if kind == "wordpiece" else 256)
    if vocab_size <= least:
        raise UsageError(f"vocab_size={vocab_size} is too small: {kind} needs more than {least} tokens here.")
    folder = local_path(directory, "Write the tokenizer to a disk, and copy it.")
    if (folder / TOKENIZER).exists():
        raise UsageError(f"{folder} has a {TOKENIZER} already; choose another directory, or move it away.")
    package = import_extra("tokenizers", extra="text", needed_by="a new tokenizer")
    import_extra("tokenizers.models", extra="text", needed_by="a new tokenizer")
    tokenizer, trainer = _MAKERS[kind](package, vocab_size, special)
    counted = _Counted(documents(texts) if isinstance(texts, str | Path) else texts)
    tokenizer.train_from_iterator(iter(counted), trainer=trainer)
    if not counted.number:
        raise UsageError("there is no text to train a tokenizer on.")
    # Each letter has a token, even if there is then no room for other pieces.
    if (smallest := tokenizer.get_vocab_size()) > vocab_size:
        raise UsageError(
            f"vocab_size={vocab_size} is too small: {kind} needs {smallest} tokens for these letters."
        )
    folder.mkdir(parents=True, exist_ok=True)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos_token, "pad_token": eos_token}
    config |= {"unk_token": _UNKNOWN} if kind == "wordpiece" else {}
    write_whole(folder / CONFIG, json.dumps(config, indent=2).encode())
    if chat_template is not None:
        write_whole(folder / TEMPLATE, chat_template.encode())
    write_whole(folder / TOKENIZER, tokenizer.to_str(pretty=True).encode())
    return folder


class _Counted:
    """Texts, and how many of them were read."""

    def __init__(self, texts: Iterable[str]):
        self.texts, self.number = texts, 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            self.number += 1
            yield text


def _bpe(package: Any, vocab_size: int, special: list[str]) -> tuple[Any, Any]:
    tokenizer = _byte_tokenizer(package, package.models.BPE())
    alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    # The alphabet has all 256 bytes, so that no text is unknown, whatever the training texts are.
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    return tokenizer, trainer


def _unigram(package: Any, vocab_size: int, special: list[str]) -> tuple[Any, Any]:
    tokenizer = _byte_tokenizer(package, package.models.Unigram())
    alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    trainer = package.trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    return tokenizer, trainer


def _byte_tokenizer(package: Any, model: Any) -> Any:
    """Return a tokenizer whose letters are the 256 bytes, so that no text is unknown."""
    tokenizer = package.Tokenizer(model)
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    return tokenizer


def _wordpiece(package: Any, vocab_size: int, special: list[str]) -> tuple[Any, Any]:
    tokenizer = package.Tokenizer(package.models.WordPiece(unk_token=_UNKNOWN))
    tokenizer.normalizer = package.normalizers.NFC()
    tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = package.decoders.WordPiece()
    trainer = package.trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=special, show_progress=False
    )
    return tokenizer, trainer


_MAKERS: dict[str, Callable[[Any, int, list[str]], tuple[Any, Any]]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "wordpiece": _wordpiece,
}
