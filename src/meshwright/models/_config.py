"""The sizes of decoders: what a model's family does otherwise, and published ones by name."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from meshwright.errors import UsageError, nearest

T = TypeVar("T")
Activation = Literal["silu", "gelu"]


@dataclass(frozen=True)
class Rope:
    """How fast rotary positions turn, slowed down where a model was stretched to a longer context."""

    base: float = 10_000.0
    factor: float = 1.0
    """How many times longer the context became."""
    length: int = 0
    """The context before that, as Llama 3.1 needs it: turns that fit into it `high` times stay as they were,
    those that fit in less than `low` times become `factor` slower. 0 slows all of them, as Gemma 3 does."""
    low: float = 1.0
    high: float = 4.0

    def frequencies(self, head: int) -> np.ndarray:
        """Return the angle per position of each pair of features, in radians: float32[H / 2]."""
        frequency = self.base ** -(np.arange(0, head, 2) / head)
        turns = self.length * frequency / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return (frequency * (kept + (1 - kept) / self.factor)).astype(np.float32)


@dataclass(frozen=True)
class Config:
    """The sizes of the model, and what its family does otherwise. The defaults make 0.9 million parameters.

    Raises:
      UsageError: the sizes do not go together.
    """

    vocabulary: int = 256
    model: int = 128
    layers: int = 4
    heads: int = 4
    key_heads: int | None = None
    """Of keys and of values: each serves `heads / key_heads` heads of queries. None for as many as those."""
    head: int | None = None
    """The size of one; None for `model / heads`."""
    feed_forward: int = 344
    activation: Activation = "silu"
    """In the feed-forward layer: SwiGLU or, as Gemma, GeGLU (in tanh's approximation)."""
    norm_epsilon: float = 1e-6
    norm_offset: float = 0.0
    """What is added to the scales of norms: 1 in Gemma, which keeps their distance from it."""
    post_norms: bool = False
    """Gemma 2 and 3: what a block's two parts return is normalised, too."""
    ropes: tuple[Rope, ...] = (Rope(),)
    """Of one layer after the other, and from the start again."""
    windows: tuple[int | None, ...] = (None,)
    """How many positions a layer sees, its own among them; None for all before it. As `ropes`."""
    tied: bool = False
    """The head is the embedding."""
    query_bias: bool = False
    """Qwen 2: queries, keys and values have biases."""
    query_norm: bool = False
    """Qwen 3 and Gemma 3: queries and keys are normalised head by head."""
    query_scale: float | None = None
    """What queries are multiplied by; None for one over the root of the head's size."""
    embedding_scale: float = 1.0
    """What embeddings are multiplied by: Gemma's are by the root of the model's size."""
    attention_cap: float | None = None
    """Gemma 2: scores are bent into ± this by a tanh."""
    logit_cap: float | None = None
    """As `attention_cap`, of the logits."""

    def __post_init__(self) -> None:
        check_sizes(self, "vocabulary", "model", "layers", "heads", "key_heads", "head", "feed_forward")
        if self.heads % self.num_key_heads:
            raise UsageError(
                f"Config.key_heads is {self.key_heads}, which does not divide heads={self.heads}."
            )
        if self.head is None and self.model % self.heads:
            raise UsageError(
                f"Config.heads is {self.heads}, which does not divide model={self.model}; "
                "or say the size of one, head."
            )
        if self.head_size % 2:
            raise UsageError(
                f"Config.head is {self.head_size}; rotary positions turn pairs, so it must be even."
            )
        if self.activation not in get_args(Activation):
            raise UsageError(f"Config.activation is {self.activation!r}; it is silu or gelu.")
        if not self.ropes or not self.windows:
            raise UsageError("Config.ropes and Config.windows need an entry at least; (None,) is no window.")
        if any(size is not None and (not isinstance(size, Integral) or size < 1) for size in self.windows):
            raise UsageError(f"Config.windows is {self.windows}; a layer sees its own position at least.")

    @property
    def num_key_heads(self) -> int:
        """How many heads of keys there are, and of values."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def head_size(self) -> int:
        """The size of one head."""
        return self.model // self.heads if self.head is None else self.head

    def layer_frequencies(self) -> np.ndarray:
        """Return the angle per position of each pair of features, in radians: float32[L, H / 2]."""
        return np.stack([rope.frequencies(self.head_size) for rope in _cycled(self.ropes, self.layers)])

    def layer_windows(self) -> np.ndarray | None:
        """Return how many positions each layer sees, int32[L]; None where all layers see all."""
        if not any(self.windows):
            return None
        endless = np.iinfo(np.int32).max
        return np.array([size or endless for size in _cycled(self.windows, self.layers)], np.int32)


def check_sizes(cfg: Any, *names: str) -> None:
    """Refuse sizes of a config that are no whole numbers from 1; None is no size.

    Raises:
      UsageError: some are not; all of them are listed.
    """
    values = {name: getattr(cfg, name) for name in names if getattr(cfg, name) is not None}
    wrong = [f"Config.{name} is {x!r}" for name, x in values.items() if not isinstance(x, Integral) or x < 1]
    if wrong:
        raise UsageError(f"{', '.join(wrong)}; sizes are whole numbers from 1.")


def config(name: str) -> Config:
    """Return the sizes of a published model, `config("llama-7b")`.

    Raises:
      UsageError: there is none of that name.
    """
    if name not in _SIZES:
        close = nearest(name, _SIZES)
        hint = f"did you mean {close!r}?" if close else f"there are {', '.join(_SIZES)}."
        raise UsageError(f"there is no decoder of size {name!r}; {hint}")
    return _SIZES[name]


def _of(vocabulary: int, model: int, layers: int, heads: tuple[int, int, int], feed_forward: int) -> Config:
    """Return the config of these sizes; `heads` are those of queries, those of keys, and the size of one."""
    queries, keys, head = heads
    return Config(vocabulary, model, layers, queries, keys, head, feed_forward)


def _llama(*sizes: Any, base: float = 10_000.0, **rest: Any) -> Config:
    return dataclasses.replace(_of(*sizes), norm_epsilon=1e-5, ropes=(Rope(base),), **rest)


def _qwen(*sizes: Any, **rest: Any) -> Config:
    return dataclasses.replace(_of(*sizes), ropes=(Rope(1e6),), **rest)


def _gemma(*sizes: Any, **rest: Any) -> Config:
    cfg = dataclasses.replace(_of(*sizes), activation="gelu", norm_offset=1.0, tied=True)
    return dataclasses.replace(cfg, embedding_scale=cfg.model**0.5, **rest)


_SIZES = {
    "tiny": Config(),
    "llama-7b": _llama(32_000, 4096, 32, (32, 32, 128), 11_008),
    "llama-70b": _llama(32_000, 8192, 80, (64, 8, 128), 28_672),
    "llama-3-8b": _llama(128_256, 4096, 32, (32, 8, 128), 14_336, base=5e5),
    "mistral-7b": _llama(32_000, 4096, 32, (32, 8, 128), 14_336, windows=(4096,)),
    "qwen-2-0.5b": _qwen(151_936, 896, 24, (14, 2, 64), 4864, query_bias=True, tied=True),
    "qwen-3-0.6b": _qwen(151_936, 1024, 28, (16, 8, 128), 3072, query_norm=True, tied=True),
    "gemma-2b": _gemma(256_000, 2048, 18, (8, 1, 256), 16_384),
    "gemma-2-2b": _gemma(
        *(256_000, 2304, 26, (8, 4, 256), 9216),
        post_norms=True,
        windows=(4096, None),
        attention_cap=50.0,
        logit_cap=30.0,
    ),
    "gemma-3-1b": _gemma(
        *(262_144, 1152, 26, (4, 1, 256), 6912),
        post_norms=True,
        query_norm=True,
        windows=(512, 512, 512, 512, 512, None),
        ropes=(Rope(), Rope(), Rope(), Rope(), Rope(), Rope(1e6)),
    ),
}


def _cycled(pattern: Sequence[T], length: int) -> Iterator[T]:
    return itertools.islice(itertools.cycle(pattern), length)
