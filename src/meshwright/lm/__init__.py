"""Language models: read, write, tune, generate, score, serve.

_models/                   reference models, one file each, and maps to the names of other libraries
_generation/               tokens of a model with a cache: greedy, drawn, by beam search, in slots
_tuning/                   adapters beside frozen weights, weights in eight and four bits, preferences
_server/                   a model behind HTTP, by OpenAI's protocol
_text_samples              the texts that the model of a run writes, for its page and for predictors
_checkpoint_models         a checkpoint's model: its texts, a server of it, its files for other programs
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.lm._generation._decoding import Decoding
    from meshwright.lm._generation._generate import generate, generate_batch, stream
    from meshwright.lm._generation._harness import lm_eval, task_scores
    from meshwright.lm._generation._model import Model, counting, logits_of, without_cache
    from meshwright.lm._generation._score import score
    from meshwright.lm._generation._text import Bytes, GrowingText, count_bytes, tokenizer_of
    from meshwright.lm._models import decoder as decoder
    from meshwright.lm._models import gguf as gguf
    from meshwright.lm._models import gpt2 as gpt2
    from meshwright.lm._models import hugging_face as hugging_face
    from meshwright.lm._models import t5 as t5
    from meshwright.lm._models import t5x as t5x
    from meshwright.lm._models._map import Map, Reshape, Row, Transpose
    from meshwright.lm._models._with_cache import with_cache
    from meshwright.lm._server._serve import Limits, Served, application, serve
    from meshwright.lm._text_samples import Generation
    from meshwright.lm._tuning._dpo import dpo, log_probabilities, with_reference
    from meshwright.lm._tuning._experiment import adapted
    from meshwright.lm._tuning._lora import lora
    from meshwright.lm._tuning._merged import merged_source
    from meshwright.lm._tuning._peft import export_adapter, read_adapter
    from meshwright.lm._tuning._quantised import quantised_init, quantised_source
    from meshwright.lm._tuning._tune import tune, tuning, tuning_on, write_best
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Bytes",
    "Decoding",
    "Generation",
    "GrowingText",
    "Limits",
    "Map",
    "Model",
    "Reshape",
    "Row",
    "Served",
    "Transpose",
    "adapted",
    "application",
    "count_bytes",
    "counting",
    "decoder",
    "dpo",
    "export_adapter",
    "generate",
    "generate_batch",
    "gguf",
    "gpt2",
    "hugging_face",
    "lm_eval",
    "log_probabilities",
    "logits_of",
    "lora",
    "merged_source",
    "quantised_init",
    "quantised_source",
    "read_adapter",
    "score",
    "serve",
    "stream",
    "t5",
    "t5x",
    "task_scores",
    "tokenizer_of",
    "tune",
    "tuning",
    "tuning_on",
    "with_cache",
    "with_reference",
    "without_cache",
    "write_best",
]
