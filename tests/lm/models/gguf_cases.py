"""Tiny models of each family that GGUF knows, and tokenizers of each kind, as files of Meshwright."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import numpy as np
import tokenizers

import meshwright as mw
from meshwright.lm._models import decoder, gpt2

TOKENIZER = Path(__file__).parents[2] / "data/tokens/golden/tokenizer"
SIZES = {"vocabulary": 48, "model": 32, "layers": 2, "heads": 4, "feed_forward": 48}
LLAMA = decoder.Config(**SIZES, key_heads=2, norm_epsilon=1e-5)
GEMMA = decoder.Config(
    **SIZES, key_heads=2, activation="gelu", norm_offset=1.0, tied=True, embedding_scale=32**0.5
)
CONFIGS = {
    "llama": LLAMA,
    "llama3": dataclasses.replace(LLAMA, tied=True, ropes=(decoder.Rope(1e4, 8.0, 32),)),
    "mistral": dataclasses.replace(LLAMA, head=16, windows=(24,)),
    "qwen2": dataclasses.replace(LLAMA, query_bias=True, ropes=(decoder.Rope(1e6, 2.0),)),
    "qwen3": dataclasses.replace(LLAMA, query_norm=True, head=16),
    "gemma": GEMMA,
    "gemma2": dataclasses.replace(
        GEMMA, post_norms=True, windows=(5, None), attention_cap=50.0, logit_cap=30.0, layers=3
    ),
    "gemma3": dataclasses.replace(
        GEMMA,
        post_norms=True,
        query_norm=True,
        windows=(5, 5, 5, 5, 5, None),
        ropes=(decoder.Rope(5000.0),) * 5 + (decoder.Rope(1e6, 8.0),),
        layers=7,
    ),
    "gpt2": gpt2.Config(**SIZES, positions=64),
    "words": dataclasses.replace(LLAMA, vocabulary=400, layers=1),
}
FAMILIES = [name for name in CONFIGS if name != "words"]
PROMPTS = [[int(x) for x in np.random.default_rng(length).integers(1, 48, length)] for length in (1, 4, 9)]
NEW, LENGTH = 12, 64
KINDS = ("gpt-2", "llama-bpe", "qwen2", "characters")
TEXTS = [
    "Once upon a time",
    "  two  spaces, and a line\n\n of 12345 numbers 6 78\t!",
    "it's Naïve — 日本 🙂 don't WE'LL",
    "<|user|>a<|end|> b",
    "",
    " ",
]
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS += r"|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {"gpt-2": None, "llama-bpe": _WORDS % "{1,3}", "qwen2": _WORDS % ""}


def params_of(cfg, dtype=np.float32):
    """Random parameters, norms and biases too, which are the same on every machine."""
    module = gpt2 if isinstance(cfg, gpt2.Config) else decoder
    structs = jax.eval_shape(functools.partial(module.init, cfg), jax.random.key(0))
    draws = np.random.default_rng(0)
    return jax.tree.map(lambda x: draws.normal(0, 0.3, x.shape).astype(np.float32).astype(dtype), structs)


def write_model(name, place, **options):
    cfg = CONFIGS[name]
    options = {"context_length": LENGTH, **options}
    return mw.lm.gguf.export_model(params_of(cfg), cfg, place / f"{name}.gguf", **options)


def folder_of(kind, place):
    """A tokenizer of a kind: of bytes, with words cut in one of the ways of `SPLITS`; or of characters."""
    folder = place / f"tokenizer-{kind}"
    folder.mkdir(parents=True)
    (folder / "tokenizer_config.json").write_text((TOKENIZER / "tokenizer_config.json").read_text())
    made = tokenizers.Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    if kind in ("characters", "letters"):
        (_of_characters if kind == "characters" else _of_letters)(folder)
        return folder
    if SPLITS[kind]:
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(SPLITS[kind]), "isolated")
        bytes_ = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, bytes_])
    made.save(str(folder / "tokenizer.json"))
    return folder


def _of_letters(folder):
    """Write a tokenizer of 48 letters, which are whole characters, so that llama.cpp tells each token."""
    letters = {chr(33 + number): number for number in range(47)} | {"$%": 47}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(letters, [("$", "%")]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["!"])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "!"}))


def _of_characters(folder):
    """Write a tokenizer like those of LLaMA 2: pairs of characters, and bytes for unknown ones."""
    pieces, merges = {}, []
    for text in ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁Oonceputimadls12"]:
        pieces.setdefault(text, len(pieces))
    for pair in [
        "▁ u",
        "▁ t",
        "n c",
        "nc e",
        "O nce",
        "▁ Once",
        "p o",
        "po n",
        "▁u pon",
        "▁t i",
        "▁ti me",
        "m e",
        "▁ a",
        "▁ ▁",
    ]:
        a, b = pair.split()
        pieces.setdefault(a + b, len(pieces))
        merges.append([a, b])
    merges.sort(key=lambda pair: pieces[pair[0] + pair[1]])
    special = [
        {"id": n, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for n, t in enumerate(["<unk>", "<s>", "</s>"])
    ]  # fmt: skip
    steps = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    said = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None,
        "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                  "vocab": pieces, "merges": merges},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(said))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
