"""Generation of tokens by a model with a cache: greedy, drawn, or by beam search.

`generate` and `stream` serve many prompts in a fixed number of rows, on the mesh of the parameters;
`generate_batch` is a pure function for use inside `jit`. A `Model` is a pair of functions, and a `Decoding`
says how tokens are chosen. May import `nn`, `sharding`, `train` and ground rooms. How a token is chosen is
in `_logits`: add a bound there, and its field to `Decoding`.
"""

from meshwright.generation._batch import Generated, generate_batch
from meshwright.generation._decoding import GREEDY, Decoding
from meshwright.generation._model import Model, counting, without_cache
from meshwright.generation._slots import Piece
from meshwright.generation._stream import generate, stream
from meshwright.generation._text import Bytes, GrowingText, Numbers, Tokenizer, tokenizer_of

__all__ = [
    "GREEDY",
    "Bytes",
    "Decoding",
    "Generated",
    "GrowingText",
    "Model",
    "Numbers",
    "Piece",
    "Tokenizer",
    "counting",
    "generate",
    "generate_batch",
    "stream",
    "tokenizer_of",
    "without_cache",
]
