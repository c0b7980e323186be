"""Generation of tokens by a model with a cache: greedy, drawn, or by beam search; and scores of tokens.

`generate` and `stream` serve many prompts in a fixed number of rows, on the mesh of the parameters;
`generate_batch` is a pure function for use inside `jit`. `score` gives the log-likelihood of rows by the same
`Model`, which is a pair of functions. A `Decoding` says how tokens are chosen. May import `nn`, `sharding`,
`train` and ground rooms. How a token is chosen is in `_logits`: add a bound there, and its field to
`Decoding`.
"""

from meshwright.generation._batch import Generated, generate_batch
from meshwright.generation._count_bytes import count_bytes
from meshwright.generation._decoding import GREEDY, Decoding
from meshwright.generation._harness import Harness, lm_eval, task_scores
from meshwright.generation._model import (
    Model,
    check_tokens,
    counting,
    logits_of,
    prompt_vocabulary,
    without_cache,
)
from meshwright.generation._pool import Pool, Wanted
from meshwright.generation._score import Scored, score
from meshwright.generation._slots import Piece
from meshwright.generation._stream import generate, length_for, stream
from meshwright.generation._text import (
    Bytes,
    GrowingText,
    Numbers,
    Tokenizer,
    stop_sequences,
    tokenizer_of,
)

__all__ = [
    "GREEDY",
    "Bytes",
    "Decoding",
    "Generated",
    "GrowingText",
    "Harness",
    "Model",
    "Numbers",
    "Piece",
    "Pool",
    "Scored",
    "Tokenizer",
    "Wanted",
    "check_tokens",
    "count_bytes",
    "counting",
    "generate",
    "generate_batch",
    "length_for",
    "lm_eval",
    "logits_of",
    "prompt_vocabulary",
    "score",
    "stop_sequences",
    "stream",
    "task_scores",
    "tokenizer_of",
    "without_cache",
]
