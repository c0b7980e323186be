"""The names of `lm` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.lm._checkpoint_models import (
        export_checkpoint,
        generation_in,
        served_of_checkpoint,
        texts_of_checkpoint,
    )
    from meshwright.lm._generation._decoding import GREEDY, Decoding
    from meshwright.lm._generation._generate import stream
    from meshwright.lm._generation._model import Model
    from meshwright.lm._generation._slots import GenerationRequest, Piece, Pool
    from meshwright.lm._generation._text import GrowingText, Numbers, Tokenizer, stop_sequences, tokenizer_of
    from meshwright.lm._models import decoder as decoder
    from meshwright.lm._models import gguf as gguf
    from meshwright.lm._models import gpt2 as gpt2
    from meshwright.lm._models import hugging_face as hugging_face
    from meshwright.lm._models import t5 as t5
    from meshwright.lm._models import t5x as t5x
    from meshwright.lm._models._map import Map
    from meshwright.lm._models._with_cache import with_cache
    from meshwright.lm._server._batcher import Batcher
    from meshwright.lm._server._serve import Limits, Served, serve
    from meshwright.lm._tuning._examples import read_pair_rows, read_rows
    from meshwright.lm._tuning._quantised import quantise
    from meshwright.lm._tuning._tune import write_best
else:
    __getattr__, __dir__ = lazy_names(__name__)
