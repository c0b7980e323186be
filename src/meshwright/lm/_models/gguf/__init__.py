"""Models as GGUF files, which llama.cpp and the programs built on it read.

`_described` says which architecture of GGUF a config is, and what cannot be written; `_tensors` has names,
shapes and numbers as GGUF has them; `_vocabulary` writes tokenizers. The package `gguf` writes the bytes, and
knows the names of tensors: `meshwright[gguf]`.
"""

import importlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.base._internal import fsync_directory, import_extra, read_file, tree
from meshwright.checkpoints._internal import Source, local, source_of, staged
from meshwright.errors import UsageError
from meshwright.lm._models import decoder, gpt2
from meshwright.lm._models._complete import check_whole
from meshwright.lm._models.gguf._described import add_config, architecture_of
from meshwright.lm._models.gguf._tensors import Tensor, tensors_of
from meshwright.lm._models.gguf._vocabulary import add_vocabulary
from meshwright.processes._internal import on_lead

__all__ = ["export_model"]


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
    package, place, source = _package(), local(to), source_of(params, "params")
    if place.suffix != ".gguf":
        raise UsageError(f"{to}: the name of the file must end with .gguf.")
    kind = architecture_of(cfg)
    check_whole(source, cfg)
    length = _context_length(cfg, tokenizer, context_length)

    def write() -> str:
        if place.exists():
            raise UsageError(f"{place} exists already; give another name, or move it away.")
        place.parent.mkdir(parents=True, exist_ok=True)
        with staged(place) as unfinished:
            writer = package.GGUFWriter(unfinished / place.name, kind)
            writer.add_type("model")
            writer.add_name(place.stem)
            add_config(package, writer, cfg, kind, length)
            add_vocabulary(package, writer, tokenizer, cfg.vocabulary)
            _write(package, writer, tensors_of(package, source, cfg, kind))
            (unfinished / place.name).rename(place)
            fsync_directory(place.parent)
        return str(place)

    return Path(on_lead(write))


def _package() -> Any:
    package = import_extra("gguf", extra="gguf", what="a GGUF file")
    logging.getLogger("gguf").setLevel(logging.WARNING)  # it tells its plan as news
    return package


def _context_length(
    cfg: decoder.Config | gpt2.Config, tokenizer: str | Path | None, given: int | None
) -> int:
    """Return how many tokens programs may give the model."""
    if isinstance(cfg, gpt2.Config):
        return cfg.positions
    found = given or _said(tokenizer).get("max_position_embeddings")
    if not isinstance(found, int) or found < 1:
        raise UsageError(
            "a GGUF file says how many tokens programs may give the model, and this run does not know it.\n"
            "  Give it: context_length=4096, or --context-length 4096."
        )
    windows = cfg.layer_windows()
    return found if windows is None or cfg.norm_offset else min(found, int(windows.min()))


def _said(tokenizer: str | Path | None) -> Mapping[str, Any]:
    """Return the `config.json` beside a tokenizer; nothing if there is none."""
    if tokenizer is None:
        return {}
    place = Path(tokenizer)
    try:
        said = json.loads(read_file((place if place.is_dir() else place.parent) / "config.json"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, Mapping) else {}


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
