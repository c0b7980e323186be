"""The arrays of a model with the names, shapes and numbers of GGUF.

Names come from the package `gguf`, by those of Hugging Face. Numbers differ in three ways: the two of a
rotary pair of LLaMA lie beside each other, not half a head apart; norms of Gemma are stored with their 1; and
weights of GPT-2 are [out, in]. Source: llama.cpp, `convert_hf_to_gguf.py`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from meshwright.checkpoints._internal import LazyArray, Source
from meshwright.errors import UsageError
from meshwright.lm._models import decoder, gpt2, hugging_face
from meshwright.lm._models.gguf._described import rope_factors

_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_SUFFIXES = (".weight", ".bias")


class Tensor(NamedTuple):
    """An array as it is written."""

    name: str
    """Its name in GGUF."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: str
    """The name of its dtype: float32, float16 or bfloat16."""
    compute: Callable[[], np.ndarray]
    """Returns its numbers, in any dtype."""

    @property
    def stored_dtype(self) -> np.dtype:
        """Return the dtype of NumPy in which the bytes are given to the writer."""
        return np.dtype(np.uint16 if self.dtype == "bfloat16" else _DTYPES[self.dtype])

    @property
    def nbytes(self) -> int:
        """Return its number of bytes."""
        return int(np.prod(self.shape)) * self.stored_dtype.itemsize

    def read(self) -> np.ndarray:
        """Return the numbers as they are written."""
        return np.ascontiguousarray(self.compute().astype(_DTYPES[self.dtype])).view(self.stored_dtype)


def tensors_of(package: Any, source: Source, cfg: decoder.Config | gpt2.Config, kind: str) -> list[Tensor]:
    """Return all arrays of a model."""
    kinds = {name: arch for arch, name in package.MODEL_ARCH_NAMES.items()}
    names = package.get_tensor_name_map(kinds[kind], cfg.layers)
    tensors = []
    for name, array in hugging_face.parameter_map(cfg).to_theirs(source).arrays().items():
        shape, compute = _in_gguf_layout(name, array, cfg, kind)
        tensors.append(Tensor(names.get_name(name, _SUFFIXES), shape, _dtype(name, array), compute))
    factors = rope_factors(cfg) if isinstance(cfg, decoder.Config) and kind == "llama" else None
    if factors is not None:
        tensors.append(Tensor("rope_freqs.weight", factors.shape, "float32", lambda: factors))
    return tensors


def _dtype(name: str, array: LazyArray) -> str:
    if array.dtype.name not in _DTYPES:
        raise UsageError(f"{name} is {array.dtype.name}; GGUF files are written of {', '.join(_DTYPES)}.")
    return "float32" if array.ndim == 1 else array.dtype.name


def _in_gguf_layout(
    name: str, array: LazyArray, cfg: decoder.Config | gpt2.Config, kind: str
) -> tuple[tuple[int, ...], Callable[[], np.ndarray]]:
    """Return the shape of an array in GGUF, and the function that computes it."""
    whole = functools.partial(np.asarray, array)
    if isinstance(cfg, gpt2.Config):
        is_transposed = array.ndim == 2 and ".h." in name
        return (array.shape[::-1], lambda: whole().T) if is_transposed else (array.shape, whole)
    heads = {"q_proj": cfg.heads, "k_proj": cfg.num_key_heads}.get(name.split(".")[-2])
    if kind == "llama" and heads is not None:
        return array.shape, lambda: _interleaved(whole(), heads)
    offset = np.float32(cfg.norm_offset)
    if offset and name.endswith("norm.weight"):
        return array.shape, lambda: whole().astype(np.float32) + offset
    return array.shape, whole


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of queries or keys with the two of each rotary pair beside each other, [out, in]."""
    pairs = rows.reshape(heads, 2, -1, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
