"""Models that `save_pretrained` wrote: their config, and what their parameters are called there and here.

cfg = hugging_face.config("Llama-3.2-1B")
params = mw.restore(hugging_face.open_model("Llama-3.2-1B"), target)
hugging_face.export_model(params, "tuned", "Llama-3.2-1B")
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from meshwright import tree
from meshwright.arrays import Source, restore_lazily, source_of
from meshwright.errors import CheckpointError, UsageError, nearest
from meshwright.formats import export_safetensors, open_source
from meshwright.models import decoder, gpt2, t5
from meshwright.models._map import Map
from meshwright.models.hugging_face import _decoder, _gpt2, _t5
from meshwright.storage import local_path
from meshwright.train import key_of

__all__ = ["config", "export_model", "open_model", "parameter_map", "to_ours"]

Config = decoder.Config | gpt2.Config | t5.Config

HEAD = "lm_head.weight"
_FAMILIES = dict.fromkeys(_decoder.MODEL_TYPES, _decoder) | {"gpt2": _gpt2, "t5": _t5}
MODEL_TYPES = tuple(_FAMILIES)
_INITS: dict[type, Callable[[Any, jax.Array], tree.PyTree]] = {
    decoder.Config: decoder.init,
    gpt2.Config: gpt2.init,
    t5.Config: t5.init,
}


def config(described: str | Path | Mapping[str, Any]) -> Config:
    """Return the config of the model that a directory with a `config.json`, or what is in one, describes.

    Raises:
      CheckpointError: there is none, its `model_type` is not known, or it asks for what the model here lacks.
    """
    said = described if isinstance(described, Mapping) else _read(local_path(described))
    kind = said.get("model_type")
    if kind not in MODEL_TYPES:
        close = nearest(str(kind), MODEL_TYPES)
        hint = f"did you mean {close}?" if close else f"there are {', '.join(MODEL_TYPES)}."
        raise CheckpointError(f"there is no model for the model_type {kind!r}; {hint}")
    _check(said, kind)
    try:
        return _FAMILIES[kind].config(said)
    except KeyError as error:
        raise CheckpointError(f"the description of a {kind} model lacks {error}.") from None
    except UsageError as error:
        raise CheckpointError(f"the description of a {kind} model cannot be: {error}") from None


def _check(said: Mapping[str, Any], kind: str) -> None:
    """Check what a description of any family must say, and must not."""
    sizes = {name: said.get(name) for name in _FAMILIES[kind].SIZES}
    missing = [repr(name) for name, size in sizes.items() if size is None]
    if missing:
        raise CheckpointError(f"the description of a {kind} model lacks {', '.join(missing)}.")
    wrong = [f"{name} is {x!r}" for name, x in sizes.items() if not isinstance(x, int) or x < 1]
    if wrong:
        raise CheckpointError(
            f"in the description of a {kind} model {', '.join(wrong)}: whole numbers from 1."
        )
    if said.get("quantization_config"):
        how = said["quantization_config"]
        raise CheckpointError(f"the model is quantized ({how}), which is not read. Take it as it was before.")


def parameter_map(cfg: Config) -> Map:
    """Return the map between a model's parameters there and here."""
    match cfg:
        case decoder.Config():
            return _decoder.parameter_map(cfg)
        case gpt2.Config():
            return _gpt2.parameter_map(cfg)
        case t5.Config():
            return _t5.parameter_map(cfg)


def open_model(path: str | Path) -> Source:
    """Return the parameters of a model that `save_pretrained` wrote, with our names.

    Raises:
      CheckpointError: as `config` and `open_source`; or a head that should be the embedding is another.
    """
    return _named(open_source(path), config(path))


def to_ours(source: Source, cfg: Config) -> Source:
    """Return `source`, which has the names there, with ours: all parameters of the model, and no others.

    Raises:
      CheckpointError: Some are missing, of other shapes, or of no use to it; all of them are listed.
    """
    ours = _named(source, cfg)
    _check_whole(ours, cfg)
    return ours


def _named(source: Source, cfg: Config) -> Source:
    ours = parameter_map(cfg).to_ours(source)
    _check_tied(source, ours)
    return ours


def _check_tied(source: Source, ours: Source) -> None:
    """Compare some rows of a head that the map leaves out, as it is tied, with those of the embedding."""
    head, embedding = source.arrays().get(HEAD), ours.arrays().get("embedding")
    if head is None or embedding is None or "head" in ours.arrays():
        return
    if head.shape != embedding.shape or np.any(np.asarray(head[:8]) != np.asarray(embedding[:8])):
        raise CheckpointError(
            f"{source}: {HEAD} is not the embedding, though config.json says so of it: set "
            "tie_word_embeddings to false there."
        )


def export_model(
    params: tree.PyTree | Source,
    directory: str | Path,
    described: str | Path,
    *,
    dtype: DTypeLike | None = None,
) -> list[Path]:
    """Write parameters, which have our names, so that `from_pretrained` loads them; return the paths.

    Args:
      params: All parameters of the model, and nothing else: a tree, `state.params`, whose arrays this process
        holds whole; or those of a checkpoint, `subtree(open_source(run), "params")`.
      directory: For `export_safetensors`, whose arguments and errors these are, too.
      described: The `config.json` of the model, or a directory with it. It is copied beside them as it is.
      dtype: What floating-point arrays are converted to.

    Raises:
      CheckpointError: As `config`; or the parameters are not those of the model that it describes.
      UsageError: Another `config.json` is there already.
    """
    cfg, said = config(described), _file(local_path(described))
    source = source_of(params, "params")
    _check_whole(source, cfg)
    copied = local_path(directory, "Export to a disk, and copy the files.") / "config.json"
    if copied.exists() and copied.read_bytes() != said.read_bytes():
        raise UsageError(f"{copied} is there already, and not the same as {said}: choose another directory.")
    written = export_safetensors(parameter_map(cfg).to_theirs(source), directory, dtype=dtype)
    if not copied.exists():
        shutil.copyfile(said, copied)
    return [*written, copied]


def _check_whole(source: Source, cfg: Config) -> None:
    """Compare names and shapes; what is missing would be random once it is loaded. Dtypes are free."""
    saved = source.arrays()
    wanted = tree.named_leaves(jax.eval_shape(lambda: _INITS[type(cfg)](cfg, key_of(0))))
    structs = {
        name: jax.ShapeDtypeStruct(x.shape, saved[name].dtype if name in saved else x.dtype)
        for name, x in wanted.items()
    }
    restore_lazily(source, tree.nested(structs))


def _file(path: Path) -> Path:
    """Return where the description is that is meant: in a directory, or beside the files."""
    place = path.expanduser()
    if place.name.endswith((".safetensors", ".safetensors.index.json")):
        place = place.parent
    return place / "config.json" if place.is_dir() else place


def _read(path: Path) -> Mapping[str, Any]:
    file = _file(path)
    try:
        found = json.loads(file.read_bytes())
        if not isinstance(found, Mapping):
            raise ValueError(f"it holds a {type(found).__name__}, no object")
        return found
    except FileNotFoundError:
        raise CheckpointError(
            f"there is no {file}, which describes the model; `save_pretrained` writes it."
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{file} is no description of a model: {error}.") from None
