"""A tokenizer in the form of GGUF.

Two kinds of `tokenizer.json` are known. "gpt2" there merges pairs of bytes: GPT-2, LLaMA 3, Qwen. "llama"
there merges pairs of characters, with bytes for unknown ones, as SentencePiece does: LLaMA 2, Mistral, Gemma.
It has a score for each token in place of a list of pairs.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.data._internal import chat
from meshwright.errors import UsageError

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
# llama.cpp's name of each pattern that cuts a text into words.
_SPLITS = {_WORDS % "{1,3}": "llama-bpe", _WORDS % "": "qwen2"}
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unk", "pad_token": "pad"}


def add_vocabulary(package: Any, writer: Any, tokenizer: str | Path | None, size: int) -> None:
    """Write the tokens of a tokenizer, and its template for chats."""
    if tokenizer is None:
        writer.add_tokenizer_model("none")
        return
    path = Path(tokenizer)
    files = chat(path.parent if path.suffix == ".json" else path).files
    settings = json.loads(files.tokenizer.to_str())
    cut = _pre_tokenizer_name(settings)
    vocabulary = files.tokenizer.get_vocab(with_added_tokens=True)
    # Older files have a pair of pieces as one text.
    pairs = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in settings["model"]["merges"])
    merges = [(first, second) for first, second in pairs]
    if max(vocabulary.values()) >= size:
        raise UsageError(f"{files.path} has {max(vocabulary.values()) + 1} tokens, and the model {size}.")
    texts, types = _tokens(package.TokenType, settings, vocabulary, size)
    writer.add_tokenizer_model("llama" if cut is None else "gpt2")
    writer.add_tokenizer_pre(cut or "default")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    if cut is None:
        ranks = {a + b: rank for rank, (a, b) in reversed([*enumerate(merges)])}
        writer.add_token_scores([-float(ranks.get(text, len(merges))) for text in texts])
        first_token = files.tokenizer.encode("a", add_special_tokens=False).tokens[0]
        # SentencePiece writes a space as U+2581.
        writer.add_add_space_prefix(first_token.startswith("▁"))
    else:
        writer.add_token_merges([f"{a} {b}" for a, b in merges])
    _add_special(writer, files, vocabulary)
    if "default" in files.templates:
        writer.add_chat_template(files.templates["default"])


def _pre_tokenizer_name(settings: Mapping[str, Any]) -> str | None:
    """Return llama.cpp's name for how a text is cut into words; None for a tokenizer like SentencePiece's."""
    model, pre_tokenizer = settings["model"], settings.get("pre_tokenizer") or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    kinds = [step.get("type") for step in steps]
    if model.get("type") == "BPE" and model.get("byte_fallback") and "ByteLevel" not in kinds:
        return None
    name = None
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True) and not steps[0].get("add_prefix_space"):
        name = "gpt-2"
    if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
        name = _SPLITS.get(steps[0].get("pattern", {}).get("Regex"))
    ignores = bool(model.get("ignore_merges"))
    if (
        model.get("type") != "BPE"
        or name is None
        or not model.get("merges")
        or (ignores and name != "llama-bpe")
    ):
        raise UsageError(
            f"the tokenizer, {model.get('type')} after {', '.join(map(str, kinds))}, is not one that is "
            "written to GGUF files: those are of GPT-2, LLaMA, Mistral, Qwen and Gemma.\n"
            "  Without a tokenizer programs take tokens: mw.lm.gguf.export_model(…, tokenizer=None)."
        )
    return name


def _tokens(
    types: Any, settings: Mapping[str, Any], vocabulary: Mapping[str, int], size: int
) -> tuple[Sequence[str], Sequence[int]]:
    """Return the text and the type of each token."""
    texts, kinds = [f"[UNUSED{number}]" for number in range(size)], [types.UNUSED] * size
    for text, number in vocabulary.items():
        is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        texts[number], kinds[number] = text, types.BYTE if is_byte else types.NORMAL
    for added in settings.get("added_tokens") or ():
        kinds[added["id"]] = types.CONTROL if added.get("special") else types.USER_DEFINED
    unknown = settings["model"].get("unk_token")
    if unknown in vocabulary:
        kinds[vocabulary[unknown]] = types.UNKNOWN
    return texts, [int(kind) for kind in kinds]


def _add_special(writer: Any, files: Any, vocabulary: Mapping[str, int]) -> None:
    """Write the numbers of special tokens, and which of them stand around texts."""
    ids_by_name = {name: vocabulary.get(str(files.special.get(theirs))) for theirs, name in _SPECIAL.items()}
    for name, number in ids_by_name.items():
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    ids = files.tokenizer.encode("a").ids
    writer.add_add_bos_token(len(ids) > 1 and ids[0] == ids_by_name["bos"])
    writer.add_add_eos_token(len(ids) > 1 and ids[-1] == ids_by_name["eos"])
