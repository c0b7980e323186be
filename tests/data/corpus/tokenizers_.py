"""A small tokenizer of the package `tokenizers`."""

import tokenizers
from tokenizers import models, pre_tokenizers

WORDS = ["<|end|>", "<|unknown|>", *"abcdefghij", "text", "word", "écrit", *map(str, range(200))]


def words():
    """Return a tokenizer of words, whose settings would cut and pad what it is given."""
    made = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<|unknown|>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_truncation(3)
    made.enable_padding(length=8)
    return made


def whole(texts):
    """Return the tokens of texts, neither cut nor padded."""
    made = words()
    made.no_truncation()
    made.no_padding()
    return [each.ids for each in made.encode_batch(texts, add_special_tokens=False)]
