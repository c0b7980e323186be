"""Models as GGUF files, which llama.cpp and the programs built on it read.

`_architecture` finds the architecture of GGUF that a config is, or names the fields that GGUF lacks, and
`_vocabulary` writes tokenizers. The package `gguf` writes the bytes, and knows the names of tensors:
`meshwright[gguf]`.

Tensors get the names of GGUF by those of Hugging Face. Their numbers differ in three ways: the two of a
rotary pair of LLaMA lie beside each other, not half a head apart; norms of Gemma are stored with their 1; and
weights of GPT-2 are [out, in]. Source: llama.cpp, `convert_hf_to_gguf.py`.
"""

import functools
import importlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from meshwright.base._internal import fsync_directory, import_extra, read_file, tree
from meshwright.checkpoints._internal import LazyArray, Source, local, source_of, staged
from meshwright.errors import UsageError
from meshwright.lm._models import decoder, gpt2, hugging_face
from meshwright.lm._models._map import check_complete
from meshwright.lm._models.gguf._architecture import add_config, architecture_of, rope_factors
from meshwright.lm._models.gguf._vocabulary import add_vocabulary
from meshwright.processes._internal import on_lead

__all__ = ["export_model"]


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


def export_model(
    params: tree.PyTree | Source,
    cfg: decoder.Config | gpt2.Config,
    to: str | Path,
    *,
    tokenizer: str | Path | None = None,
    context_length: int | None = None,
) -> Path:
    """Write a model as a GGUF file, and return its path. It needs `meshwright[gguf]`.

    Weights have the dtype of `params`: float32, float16 or bfloat16; norms, biases and other vectors are
    float32. Decoders of LLaMA, Mistral, Qwen 2 and 3, Gemma 1 to 3, and GPT-2 can be written. Collective:
    process 0 writes.

    Args:
      params: All parameters of the model, and nothing else: a tree whose arrays this process holds whole, or
        an opened checkpoint.
      cfg: The config of the model.
      to: The path of the file, which ends with `.gguf`.
      tokenizer: The folder of the tokenizer, or the path of its `tokenizer.json`. Its special tokens and its
        template come along. None writes no texts, and programs take tokens.
      context_length: The number of tokens that programs may give the model. None takes the
        `max_position_embeddings` in a `config.json` beside the tokenizer. If layers have windows that GGUF
        does not know, as in Mistral, the file says at most the window, within which it changes nothing.

    Raises:
      UsageError: The file exists already, the model or its tokenizer has what GGUF lacks, the context length
        is not known, or `gguf` is not installed.
      CheckpointError: The parameters do not fit the model.

    Example:
      >>> cfg = mw.lm.decoder.Config(vocabulary=16, model=32, layers=1, heads=2, feed_forward=32)
      >>> params = mw.lm.decoder.init(cfg, mw.training.key_of(0))
      >>> path = mw.lm.gguf.export_model(params, cfg, "model.gguf", context_length=64)
      >>> path.read_bytes()[:4]
      b'GGUF'
    """
    package, path, source = _package(), local(to), source_of(params, "params")
    if path.suffix != ".gguf":
        raise UsageError(f"{to}: the name of the file must end with .gguf.")
    kind = architecture_of(cfg)
    check_complete(source, cfg)
    length = _context_length(cfg, tokenizer, context_length)

    def write() -> str:
        if path.exists():
            raise UsageError(f"{path} exists already; give another name, or move it away.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged(path) as unfinished:
            writer = package.GGUFWriter(unfinished / path.name, kind)
            writer.add_type("model")
            writer.add_name(path.stem)
            add_config(package, writer, cfg, kind, length)
            add_vocabulary(package, writer, tokenizer, cfg.vocabulary)
            _write(package, writer, tensors_of(package, source, cfg, kind))
            (unfinished / path.name).rename(path)
            fsync_directory(path.parent)
        return str(path)

    return Path(on_lead(write))


def _package() -> Any:
    package = import_extra("gguf", extra="gguf", needed_by="a GGUF file")
    # The package logs its plan of the file at the level INFO.
    logging.getLogger("gguf").setLevel(logging.WARNING)
    return package


def _context_length(
    cfg: decoder.Config | gpt2.Config, tokenizer: str | Path | None, context_length: int | None
) -> int:
    """Return how many tokens programs may give the model."""
    if isinstance(cfg, gpt2.Config):
        return cfg.positions
    length = context_length or _model_config(tokenizer).get("max_position_embeddings")
    if not isinstance(length, int) or length < 1:
        raise UsageError(
            "a GGUF file says how many tokens programs may give the model, and this run does not know it.\n"
            "  Give it: context_length=4096, or --context-length 4096."
        )
    windows = cfg.layer_windows()
    return length if windows is None or cfg.norm_offset else min(length, int(windows.min()))


def _model_config(tokenizer: str | Path | None) -> Mapping[str, Any]:
    """Return the `config.json` beside a tokenizer; nothing if there is none."""
    if tokenizer is None:
        return {}
    path = Path(tokenizer)
    try:
        config = json.loads(read_file((path if path.is_dir() else path.parent) / "config.json"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, Mapping) else {}


def _write(package: Any, writer: Any, tensors: list[Tensor]) -> None:
    """Write the file, one tensor in memory at a time."""
    dtypes = {tensor.dtype for tensor in tensors if len(tensor.shape) > 1}
    types = package.LlamaFileType
    whole = {"float32": types.ALL_F32, "float16": types.MOSTLY_F16, "bfloat16": types.MOSTLY_BF16}
    writer.add_file_type(whole[min(dtypes)])
    for tensor in tensors:
        raw = package.GGMLQuantizationType.BF16 if tensor.dtype == "bfloat16" else None
        stored = tensor.stored_dtype
        writer.add_tensor_info(tensor.name, tensor.shape, stored, tensor.nbytes, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.read())
    writer.flush()
    os.fsync(writer.fout[0].fileno())
    writer.close()


_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_SUFFIXES = (".weight", ".bias")


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
