"""Models that `save_pretrained` wrote: their config, and what their parameters are called there and here.

cfg = hugging_face.config("Llama-3.2-1B")
params = mw.restore(hugging_face.open_model("Llama-3.2-1B"), target)
mw.checkpoint.export_safetensors(hugging_face.parameter_map(cfg).to_theirs(source), "tuned")
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.checkpoint import Source, open_source
from meshwright.errors import CheckpointError, nearest
from meshwright.models import decoder, gpt2, t5
from meshwright.models._map import Map
from meshwright.models.hugging_face import _decoder, _gpt2, _t5

__all__ = ["config", "open_model", "parameter_map"]

Config = decoder.Config | gpt2.Config | t5.Config

_FAMILIES = dict.fromkeys(_decoder.MODEL_TYPES, _decoder) | {"gpt2": _gpt2, "t5": _t5}


def config(described: str | Path | Mapping[str, Any]) -> Config:
    """Return the config of the model that a directory with a `config.json`, or what is in one, describes.

    Raises:
      CheckpointError: there is none, its `model_type` is not known, or it asks for what the model here lacks.
    """
    said = described if isinstance(described, Mapping) else _read(Path(described))
    kind = said.get("model_type")
    if kind not in _FAMILIES:
        close = nearest(str(kind), _FAMILIES)
        hint = f"did you mean {close}?" if close else f"there are {', '.join(_FAMILIES)}."
        raise CheckpointError(f"there is no model for the model_type {kind!r}; {hint}")
    try:
        return _FAMILIES[kind].config(said)
    except KeyError as error:
        raise CheckpointError(f"the description of a {kind} model lacks {error}.") from None


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
      CheckpointError: as `config` and `open_source`.
    """
    return parameter_map(config(path)).to_ours(open_source(path))


def _read(path: Path) -> Mapping[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        return json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise CheckpointError(f"{file} is no description of a model: {error}.") from None
