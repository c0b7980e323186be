"""The bytes of text that each token stands for, for scores per byte."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.errors import UsageError
from meshwright.lm._generation._text import Bytes, tokenizer_of

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def count_bytes(tokenizer: Any, vocabulary: int) -> np.ndarray:
    """Return the number of bytes of text, in UTF-8, that each token stands for: int32[vocabulary].

    Special tokens, such as the end of a text, stand for no text, and so do tokens that the tokenizer does not
    have. A space that a tokenizer of SentencePiece puts before each text counts as a byte.

    Args:
      tokenizer: What `mw.lm.tokenizer_of` takes. Tokenizers of bytes, of byte-level BPE (GPT-2,
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
    inner: Any = getattr(tokenizer_object, "backend_tokenizer", None) or getattr(tokenizer_object, "inner", None)
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
    """Return the function from a token as it is written to the number of bytes that it stands for."""
    decoder = settings.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return len  # each character of such a token is written for one byte
    replaces = any(
        step.get("type") == "Replace" and step.get("pattern", {}).get("String") == "▁" for step in steps
    )
    if "Metaspace" in kinds or replaces:
        return lambda text: 1 if _BYTE.fullmatch(text) else len(text.replace("▁", " ").encode())
    raise UsageError(
        f"the tokenizer's decoder is {', '.join(sorted(map(str, kinds)))}, which does not keep all bytes of "
        "a text.\n  Score per token, or make the array yourself: int[vocabulary]."
    )
