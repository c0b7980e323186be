"""The config of decoders: sizes, features of model families, and published models by name."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from meshwright.base._internal import explained_as
from meshwright.errors import UsageError, did_you_mean

T = TypeVar("T")
Activation = Literal["silu", "gelu"]


@dataclass(frozen=True)
class Rope:
    """The frequencies of rotary positions, also scaled for a longer context.

    Example:
      >>> mw.lm.decoder.Rope(base=100.0).frequencies(4)
      array([1. , 0.1], dtype=float32)
    """

    base: float = 10_000.0
    """The base of the frequencies, called rope_theta elsewhere."""
    factor: float = 1.0
    """The ratio of the longer context to the original one, by which frequencies are divided."""
    length: int = 0
    """The original context length in tokens, for Llama 3.1: frequencies with at least `high` full turns in it
    stay the same, those with at most `low` are divided by `factor`, and those between are interpolated. 0
    divides all of them, as Gemma 3 does."""
    low: float = 1.0
    """The number of turns up to which a frequency is divided by `factor`."""
    high: float = 4.0
    """The number of turns from which on a frequency stays the same."""

    def frequencies(self, head: int) -> np.ndarray:
        """Return the angle per position of each pair of features, in radians: float32[H / 2]."""
        frequency = self.base ** -(np.arange(0, head, 2) / head)
        turns = self.length * frequency / (2 * math.pi)
        kept_share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return (frequency * (kept_share + (1 - kept_share) / self.factor)).astype(np.float32)


@explained_as("lm.decoder.Config")
@dataclass(frozen=True)
class Config:
    """The sizes and features of a decoder. The defaults make a model of 0.9 million parameters.

    Example:
      >>> cfg = mw.lm.decoder.Config(vocabulary=100, model=64, layers=2, heads=4)
      >>> cfg.head_size
      16
    """

    vocabulary: int = 256
    """The number of tokens in the vocabulary, V."""
    model: int = 128
    """The number of features of the residual stream, D."""
    layers: int = 4
    """The number of layers, L."""
    heads: int = 4
    """The number of query heads, N."""
    key_heads: int | None = None
    """The number of key and value heads, each of which serves `heads / key_heads` query heads; None for as
    many as query heads."""
    head: int | None = None
    """The size of a head, H; None for `model / heads`."""
    feed_forward: int = 344
    """The number of hidden features of the feed-forward layer, F."""
    activation: Activation = "silu"
    """The activation of the gated feed-forward layer: "silu" for SwiGLU, or "gelu" for GeGLU with the tanh
    approximation, as in Gemma."""
    norm_epsilon: float = 1e-6
    """The number added to the mean square in norms."""
    norm_offset: float = 0.0
    """The number added to the scales of norms: 1 in Gemma, whose scales are stored as differences from 1."""
    post_norms: bool = False
    """True if the outputs of attention and feed-forward layer are also normalised, as in Gemma 2 and 3."""
    ropes: tuple[Rope, ...] = (Rope(),)
    """The rotary positions of the layers, repeated from the start if there are fewer than layers."""
    windows: tuple[int | None, ...] = (None,)
    """The number of positions that each layer attends to, with its own; None for all before. Repeated like
    `ropes`."""
    tied: bool = False
    """True if the embedding is also used as the head."""
    query_bias: bool = False
    """True if queries, keys and values have biases, as in Qwen 2."""
    query_norm: bool = False
    """True if queries and keys are normalised in each head, as in Qwen 3 and Gemma 3."""
    query_scale: float | None = None
    """The factor of attention scores; None for one over the square root of the head size."""
    embedding_scale: float = 1.0
    """The factor of embeddings; in Gemma the square root of the model size."""
    attention_cap: float | None = None
    """The bound of attention scores, which a tanh limits to ± this, as in Gemma 2; None for no bound."""
    logit_cap: float | None = None
    """The same bound for the logits."""
    experts: int | None = None
    """The number of experts of each feed-forward layer, E, each with `feed_forward` hidden features; None for
    one layer that computes all tokens."""
    experts_per_token: int = 2
    """The number of experts that a token goes to."""
    normalize_experts: bool = True
    """True if the weights of a token's experts add up to 1, as in Mixtral."""
    expert_capacity: float | None = None
    """The number of tokens that an expert takes from each row at most, as a factor of the mean; None for all.
    Further tokens lack its part. It bounds what is sent and computed.
    In generation no token is dropped."""
    balance_factor: float = 0.01
    """The factor of the balancing loss, the mean over the layers of `mw.nn.Routing.balance_loss`, which
    `loss` adds."""

    def __post_init__(self) -> None:
        check_sizes(self, "vocabulary", "model", "layers", "heads", "key_heads", "head", "feed_forward")
        check_sizes(self, "experts", "experts_per_token")
        if self.experts is not None and self.experts_per_token > self.experts:
            raise UsageError(
                f"Config.experts_per_token is {self.experts_per_token}, but there are {self.experts} experts."
            )
        if self.expert_capacity is not None:
            _check_capacity(self.expert_capacity, self.experts)
        if self.heads % self.num_key_heads:
            raise UsageError(
                f"Config.key_heads is {self.key_heads}, which does not divide heads={self.heads}."
            )
        if self.head is None and self.model % self.heads:
            raise UsageError(
                f"Config.heads is {self.heads}, which does not divide model={self.model}. Change one "
                "of them, or give the size of a head, head."
            )
        if self.head_size % 2:
            raise UsageError(
                f"Config.head is {self.head_size}, but must be even: rotary positions rotate pairs."
            )
        if self.activation not in get_args(Activation):
            raise UsageError(f"Config.activation is {self.activation!r}; expected silu or gelu.")
        if not self.ropes or not self.windows:
            raise UsageError(
                "Config.ropes and Config.windows need at least one entry; (None,) means no window."
            )
        if any(size is not None and (not isinstance(size, Integral) or size < 1) for size in self.windows):
            raise UsageError(
                f"Config.windows is {self.windows}; each must be None or a number of positions, 1 or more."
            )

    @property
    def num_key_heads(self) -> int:
        """Return the number of key and value heads."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def head_size(self) -> int:
        """Return the size of a head."""
        return self.model // self.heads if self.head is None else self.head

    def layer_frequencies(self) -> np.ndarray:
        """Return the angle per position of each pair of features, in radians: float32[L, H / 2]."""
        return np.stack([rope.frequencies(self.head_size) for rope in cycled(self.ropes, self.layers)])

    def layer_windows(self) -> np.ndarray | None:
        """Return the number of positions that each layer attends to, int32[L]; None if none has a window."""
        if not any(self.windows):
            return None
        endless = np.iinfo(np.int32).max
        return np.array([size or endless for size in cycled(self.windows, self.layers)], np.int32)


def _check_capacity(capacity: Any, experts: int | None) -> None:
    if not (isinstance(capacity, int | float) and 0 < capacity < math.inf):
        raise UsageError(
            f"Config.expert_capacity is {capacity!r}; it must be a number above 0, such as 1.25, or None."
        )
    if experts is None:
        raise UsageError(
            f"Config.expert_capacity is {capacity}, but the model has no experts.\n"
            "  Set Config.experts too, or leave it out."
        )


def check_sizes(cfg: Any, *names: str) -> None:
    """Check that the named fields of a config are whole numbers from 1, or None."""
    values = {name: getattr(cfg, name) for name in names if getattr(cfg, name) is not None}
    wrong = [f"Config.{name} is {x!r}" for name, x in values.items() if not isinstance(x, Integral) or x < 1]
    if wrong:
        raise UsageError(f"{', '.join(wrong)}; sizes must be whole numbers from 1.")


def config(name: str) -> Config:
    """Return the config of a published model.

    Example:
      >>> mw.lm.decoder.config("llama-3-8b").layers
      32
    """
    if name not in _SIZES:
        hint = did_you_mean(name, _SIZES) or f" There are {', '.join(_SIZES)}."
        raise UsageError(f"there is no decoder called {name!r}.{hint}")
    return _SIZES[name]


def _sized(
    vocabulary: int, model: int, layers: int, heads: tuple[int, int, int], feed_forward: int
) -> Config:
    """Return a config; `heads` has the numbers of query heads and of key heads, and the size of a head."""
    queries, keys, head = heads
    return Config(vocabulary, model, layers, queries, keys, head, feed_forward)


def _llama(*sizes: Any, base: float = 10_000.0, **rest: Any) -> Config:
    return dataclasses.replace(_sized(*sizes), norm_epsilon=1e-5, ropes=(Rope(base),), **rest)


def _qwen(*sizes: Any, **rest: Any) -> Config:
    return dataclasses.replace(_sized(*sizes), ropes=(Rope(1e6),), **rest)


def _gemma(*sizes: Any, **rest: Any) -> Config:
    cfg = dataclasses.replace(_sized(*sizes), activation="gelu", norm_offset=1.0, tied=True)
    return dataclasses.replace(cfg, embedding_scale=cfg.model**0.5, **rest)


_SIZES = {
    "tiny": Config(),
    "llama-7b": _llama(32_000, 4096, 32, (32, 32, 128), 11_008),
    "llama-70b": _llama(32_000, 8192, 80, (64, 8, 128), 28_672),
    "llama-3-1b": _llama(128_256, 2048, 16, (32, 8, 64), 8192, base=5e5, tied=True),
    "llama-3-8b": _llama(128_256, 4096, 32, (32, 8, 128), 14_336, base=5e5),
    "llama-3-70b": _llama(128_256, 8192, 80, (64, 8, 128), 28_672, base=5e5),
    "llama-3-405b": _llama(128_256, 16_384, 126, (128, 8, 128), 53_248, base=5e5),
    "mistral-7b": _llama(32_000, 4096, 32, (32, 8, 128), 14_336, windows=(4096,)),
    "mixtral-8x7b": _llama(
        *(32_000, 4096, 32, (32, 8, 128), 14_336),
        base=1e6,
        experts=8,
        experts_per_token=2,
        balance_factor=0.04,
    ),
    "qwen-2-0.5b": _qwen(151_936, 896, 24, (14, 2, 64), 4864, query_bias=True, tied=True),
    "qwen-3-0.6b": _qwen(151_936, 1024, 28, (16, 8, 128), 3072, query_norm=True, tied=True),
    "qwen-3-30b-a3b": _qwen(
        *(151_936, 2048, 48, (32, 4, 128), 768),
        query_norm=True,
        experts=128,
        experts_per_token=8,
        balance_factor=0.008,
    ),
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


def cycled(pattern: Sequence[T], length: int) -> Iterator[T]:
    return itertools.islice(itertools.cycle(pattern), length)
