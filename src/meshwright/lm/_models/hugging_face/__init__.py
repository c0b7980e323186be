"""Models saved by Hugging Face's `save_pretrained`: their configs, and maps of their parameters.

cfg = hugging_face.config("Llama-3.2-1B")
params = mw.restore(hugging_face.open_model("Llama-3.2-1B"), target)
hugging_face.export_model(params, "tuned", "Llama-3.2-1B")
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from meshwright.base._internal import local_path, parse_object, read_file, tree
from meshwright.checkpoints._internal import LazyArray, Source, export_safetensors, open_source, source_of
from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.lm._models._map import Map, check_complete
from meshwright.lm._models.hugging_face import _decoder, _gpt2, _t5
from meshwright.lm._models.hugging_face._folder import (
    check_companions,
    check_keys,
    companions,
    copy_companions,
    write_companions,
)
from meshwright.processes._internal import on_lead

__all__ = [
    "config",
    "config_json",
    "copy_companions",
    "export_model",
    "open_model",
    "parameter_map",
    "to_ours",
]

Config = decoder.Config | gpt2.Config | t5.Config

HEAD = "lm_head.weight"
# Names that a file may have for copies of the embedding.
_TIED = {HEAD, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
_FAMILIES = dict.fromkeys(_decoder.MODEL_TYPES, _decoder) | {"gpt2": _gpt2}
_FAMILIES |= dict.fromkeys(_t5.MODEL_TYPES, _t5)
MODEL_TYPES = tuple(_FAMILIES)


def config(model: str | Path | Mapping[str, Any]) -> Config:
    """Return the config of a model, from its `config.json`.

    Args:
      model: The path of a `config.json`, of a directory with one, or of a weight file beside one; or the
        content of one.

    Raises:
      CheckpointError: The file does not exist, its `model_type` is not known, or it needs a feature that the
        model here lacks.

    Example:
      >>> sizes = {"vocab_size": 100, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4}
      >>> mw.lm.hugging_face.config({"model_type": "gpt2", **sizes}).feed_forward
      256
    """
    settings = model if isinstance(model, Mapping) else _read(local_path(model))
    kind = settings.get("model_type")
    if kind not in MODEL_TYPES:
        # No near name: a program wrote this one, so it is another model, as gemma3 is not gemma.
        message = f"there is no model here for model_type {kind!r}; there are {', '.join(MODEL_TYPES)}."
        text = settings.get("text_config")
        if isinstance(text, Mapping) and text.get("model_type") in MODEL_TYPES:
            message += (
                f"\n  Its part for text is a {text['model_type']}. Save that alone, as in transformers "
                "Gemma3ForCausalLM.from_pretrained(path).save_pretrained(folder)."
            )
        raise CheckpointError(message)
    _check(settings, kind)
    try:
        return _FAMILIES[kind].config(settings)
    except KeyError as error:
        raise CheckpointError(f"the config.json of a {kind} model lacks {error}.") from None
    except UsageError as error:
        raise CheckpointError(f"the config.json of a {kind} model is not valid: {error}") from None


def config_json(cfg: t5.Config) -> dict[str, Any]:
    """Return the content of a `config.json` for a T5, as `export_model` takes it.

    It is for parameters that no folder of Hugging Face's came with, such as those of a checkpoint of T5X.

    Args:
      cfg: The config of the model.

    Example:
      >>> mw.lm.hugging_face.config_json(mw.lm.t5.Config())["feed_forward_proj"]
      'gated-gelu'
    """
    return _t5.config_json(cfg)


def _check(settings: Mapping[str, Any], kind: str) -> None:
    """Check the sizes and keys of a `config.json`, and that the model is not quantized."""
    sizes = {name: settings.get(name) for name in _FAMILIES[kind].SIZES}
    missing = [repr(name) for name, size in sizes.items() if size is None]
    if missing:
        raise CheckpointError(f"the config.json of a {kind} model lacks {', '.join(missing)}.")
    wrong = [f"{name} is {x!r}" for name, x in sizes.items() if not isinstance(x, int) or x < 1]
    if wrong:
        raise CheckpointError(
            f"in the config.json of a {kind} model, {', '.join(wrong)}; expected whole numbers from 1."
        )
    if settings.get("quantization_config"):
        method = settings["quantization_config"]
        raise CheckpointError(
            f"the model is quantized ({method}), which is not supported. Use the original model."
        )
    check_keys(settings, _FAMILIES[kind].KEYS[kind], _FAMILIES[kind].ALIKE)


def parameter_map(cfg: Config) -> Map:
    """Return the map between a model's parameters in Hugging Face's libraries and here.

    Args:
      cfg: The config of the model, as `config` returns it.
    """
    match cfg:
        case decoder.Config():
            return _decoder.parameter_map(cfg)
        case gpt2.Config():
            return _gpt2.parameter_map(cfg)
        case t5.Config():
            return _t5.parameter_map(cfg)


def open_model(path: str | Path) -> Source:
    """Open the parameters of a model saved by `save_pretrained`, with the names and shapes of the model here.

    Args:
      path: The directory of the model, with `config.json` and safetensors files.

    Raises:
      CheckpointError: As `config` and `open_source`; or the head is not the embedding, though `config.json`
        says that it is.
    """
    return _named(open_source(path), config(path))


def to_ours(source: Source, cfg: Config) -> Source:
    """Return a source with our names, given one with Hugging Face's, and check that it fits the model.

    Args:
      source: The parameters with Hugging Face's names.
      cfg: The config of the model.

    Raises:
      CheckpointError: Parameters are missing, have other shapes, or do not belong to the model; all of them
        are listed.
    """
    ours = _named(source, cfg)
    check_complete(ours, cfg)
    return ours


def _named(source: Source, cfg: Config) -> Source:
    ours = parameter_map(cfg).to_ours(source)
    _check_tied(source, ours)
    return ours


def _check_tied(source: Source, ours: Source) -> None:
    """Check that what the map leaves out as tied to the embedding equals it."""
    # A file may contain copies of the embedding. A copy that differs is a head of its own, and must not be
    # lost.
    theirs, embedding = source.arrays(), ours.arrays().get("embedding")
    tied = theirs.keys() & _TIED - ({HEAD} if "head" in ours.arrays() else set())
    for name in sorted(tied):
        if embedding is not None and not _equal(theirs[name], embedding):
            raise CheckpointError(
                f"{source}: {name} is not the embedding, though config.json says that they are tied. "
                + ("Set tie_word_embeddings to false there." if name == HEAD else "Such a model is not read.")
            )


def _equal(first: LazyArray, other: LazyArray) -> bool:
    """Return whether all values are equal; some thousand rows are read at a time."""
    return first.shape == other.shape and all(
        np.array_equal(np.asarray(first[rows]), np.asarray(other[rows]))
        for rows in (slice(start, start + 4096) for start in range(0, first.shape[0], 4096))
    )


def export_model(
    params: tree.PyTree | Source,
    directory: str | Path,
    model: str | Path | Mapping[str, Any],
    *,
    dtype: DTypeLike | None = None,
) -> list[Path]:
    """Write a model so that Hugging Face's `from_pretrained` loads it, and return the paths of its files.

    Collective, like `export_safetensors`.

    Args:
      params: All parameters of the model, and nothing else: a tree, `state.params`, whose arrays this process
        holds whole; or those of a checkpoint, `subtree(open_source(run), "params")`.
      directory: The local directory to write to; it is created if needed.
      model: The directory of the model that this one began from. Its `config.json` is copied unchanged,
        and so are the files of its tokenizer and its `generation_config.json`, except links. Or the path of a
        `config.json`, which is copied alone; or the content of one, as `config_json` makes it.
      dtype: The dtype to cast floating-point arrays to.

    Raises:
      CheckpointError: As `config`; or the parameters do not fit the model.
      UsageError: The directory has another `config.json`; or as `export_safetensors`.

    Example:
      >>> import json, pathlib
      >>> sizes = {"vocab_size": 10, "n_positions": 4, "n_embd": 8, "n_layer": 1, "n_head": 2}
      >>> model_config = {"model_type": "gpt2", **sizes}
      >>> _ = pathlib.Path("config.json").write_text(json.dumps(model_config))
      >>> params = mw.lm.gpt2.init(mw.lm.hugging_face.config(model_config), mw.training.key_of(0))
      >>> [path.name for path in mw.lm.hugging_face.export_model(params, "exported", "config.json")]
      ['model.safetensors', 'config.json']
    """
    cfg, source = config(model), source_of(params, "params")
    others: dict[str, bytes] = {}
    if isinstance(model, Mapping):
        config_content = json.dumps(model, indent=2, sort_keys=True).encode() + b"\n"
    else:
        path = local_path(model)
        file = _file(path)
        config_content = read_file(file)
        # The path of a `config.json` alone stands for that file, and not for its folder.
        if file != path.expanduser():
            others = companions(file.parent)
    check_complete(source, cfg)
    target = local_path(directory, "Export to a disk, and copy the files.")
    copied = target / "config.json"
    check_companions(target, others)
    if copied.exists() and read_file(copied) != config_content:
        raise UsageError(f"{copied} exists already, and differs from the model's: choose another directory.")
    paths = export_safetensors(parameter_map(cfg).to_theirs(source), directory, dtype=dtype)
    if not copied.exists():
        copied.write_bytes(config_content)
    on_lead(lambda: write_companions(target, others))
    return [*paths, copied, *(target / name for name in others)]


def _file(model: Path) -> Path:
    """Return the path of the `config.json`: `model` itself, in a directory, or beside a weight file."""
    file = model.expanduser()
    if file.name.endswith((".safetensors", ".safetensors.index.json")):
        file = file.parent
    return file / "config.json" if file.is_dir() else file


def _read(path: Path) -> Mapping[str, Any]:
    file = _file(path)
    try:
        return parse_object(read_file(file))
    except FileNotFoundError:
        raise CheckpointError(
            f"{file}, which describes the model, does not exist; `save_pretrained` writes it."
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{file} does not describe a model: {error}.") from None
