"""T5 as T5X saves it: maps of the parameters' names and shapes, in both directions.

    source = mw.checkpoints.open_source("gs://…/t5_1_1_small/checkpoint_1000000")
    cfg = t5x.config(source)
    params = mw.restore(t5x.to_ours(source), target)

T5X has two models of T5. One has a name for each layer, `target/encoder/layers_0/…`, and the heads of
attention side by side, [D, N * H]. The other one scans over the layers: all lie in one array of
`target/encoder/encoder/…`, along its dimension 1, and the heads are apart, [D, L, N, H]. It has a bias of
positions for each layer, as UMT5 has; if all are equal, they are read as the one of T5.

Source: `examples/t5`, `examples/scalable_t5` and `partitioning.py` of github.com/google-research/t5x.
Dimensions are called as in `t5`.
"""

import re
from pathlib import Path

import numpy as np

from meshwright.base._internal import PyTree
from meshwright.checkpoints._internal import LazyArray, Source, as_source, open_source, source_of, stack
from meshwright.errors import CheckpointError
from meshwright.lm._models._map import Map, Reshape, Row, Transpose, check_complete
from meshwright.lm._models.t5 import Config

_EMBEDDING = "target/token_embedder/embedding"
_STACKS = ("encoder", "decoder")
_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "out"}
_PARTS = {
    "encoder": {"": "attention"},
    "decoder": {"": "self_attention", "cross_": "encoder_decoder_attention"},
}
_NORMS = {
    "encoder": {"attention_norm": "pre_attention_layer_norm"},
    "decoder": {
        "attention_norm": "pre_self_attention_layer_norm",
        "cross_attention_norm": "pre_cross_attention_layer_norm",
    },
}
_SCAN_DIM = 1


def recognises(source: Source) -> bool:
    """Return whether a source has the parameters of a T5 of T5X, by their names.

    Args:
      source: An opened checkpoint of any format.
    """
    return _EMBEDDING in source.arrays()


def config(source: Source) -> Config:
    """Return the config of a T5 from the names and shapes of its parameters.

    The names and shapes do not tell `max_distance` and `norm_epsilon`, which are 128 and 1e-6 in all
    published models.

    Args:
      source: The opened checkpoint of T5X, or parameters with the names of `mw.lm.t5`.

    Raises:
      CheckpointError: It is not a T5, or its parameters do not fit together.
    """
    ours = _named(source) if recognises(source) else source
    shapes = {name: x.shape for name, x in ours.arrays().items()}
    shared = "encoder/position_bias" in shapes
    bias = "encoder/position_bias" if shared else "encoder/layers/position_bias"
    try:
        vocabulary, model = shapes["embedding"]
        layers, _, inner = shapes["encoder/layers/q"]
        decoder_layers, _, feed_forward = shapes["decoder/layers/up"]
        *_, buckets, heads = shapes[bias]
        return Config(
            vocabulary=vocabulary,
            model=model,
            layers=layers,
            decoder_layers=decoder_layers,
            heads=heads,
            head=inner // max(heads, 1),
            feed_forward=feed_forward,
            gated="encoder/layers/gate" in shapes,
            tied="head" not in shapes,
            buckets=buckets,
            shared_bias=shared,
        )
    except KeyError as error:
        raise CheckpointError(f"{source} is not a T5: it has no {error}.") from None
    except ValueError as error:
        # Unpacking a shape of another length also raises ValueError.
        raise CheckpointError(f"{source} is not a T5: its shapes do not fit together ({error}).") from None


def open_model(path: str | Path) -> Source:
    """Open the parameters of a T5 that T5X saved, with the names and shapes of `mw.lm.t5`.

    Args:
      path: The checkpoint, or a directory of checkpoints, whose newest one is opened.

    Raises:
      CheckpointError: As `to_ours` and `mw.checkpoints.open_source`.
    """
    return to_ours(open_source(path))


def to_ours(source: Source) -> Source:
    """Return the parameters of a T5 of T5X with our names and shapes, and leave out the optimizer's state.

    Args:
      source: The opened checkpoint of T5X, with one array for each layer or with one for all.

    Raises:
      CheckpointError: It is not a T5; or parameters are missing, have other shapes, or do not belong to it.
        All of them are listed.

    Example:
      >>> cfg = mw.lm.t5.Config(8, 4, layers=2, decoder_layers=2, heads=2, head=4, feed_forward=8)
      >>> theirs = mw.lm.t5x.to_theirs(mw.lm.t5.init(cfg, mw.training.key_of(0)))
      >>> theirs.arrays()["target/encoder/layers_1/attention/query/kernel"].shape
      (4, 8)
      >>> mw.lm.t5x.to_ours(theirs).arrays()["encoder/layers/q"].shape
      (2, 4, 8)
    """
    ours = _named(source)
    check_complete(ours, config(ours))
    return ours


def to_theirs(params: PyTree | Source, *, scanned: bool = False) -> Source:
    """Return the parameters of a T5 with T5X's names and shapes, for `mw.checkpoints.export_t5x`.

    Args:
      params: All parameters of a model of `mw.lm.t5`, and nothing else.
      scanned: If true, they are for T5X's model that scans over layers, `scalable_t5`. A bias of positions
        that all layers share is repeated for each of them.

    Raises:
      CheckpointError: The parameters do not fit the model.
    """
    source = source_of(params, "params")
    cfg = config(source)
    check_complete(source, cfg)
    theirs = parameter_map(cfg, scanned=scanned, heads_apart=scanned).to_theirs(source)
    return _repeated(theirs, cfg) if scanned and cfg.shared_bias else theirs


def parameter_map(cfg: Config, *, scanned: bool = False, heads_apart: bool = False) -> Map:
    """Return the map between the parameters of a T5 in T5X and here.

    Args:
      cfg: The config of the model.
      scanned: Whether one array holds all layers, along its dimension 1.
      heads_apart: Whether heads have a dimension of their own.
    """
    rows = [Row("embedding", _EMBEDDING)]
    if not cfg.tied:
        rows.append(Row("head", "target/decoder/logits_dense/kernel"))
    for tower in _STACKS:
        rows += _stack(cfg, tower, scanned, heads_apart)
    return Map(tuple(rows), ignore=r"(state|flax_mutables)/.*")


def _stack(cfg: Config, tower: str, scanned: bool, heads_apart: bool) -> list[Row]:
    theirs, ours = f"target/{tower}", f"{tower}/layers"
    layer, dim = (f"{theirs}/{tower}", _SCAN_DIM) if scanned else (theirs + "/layers_{}", None)
    split, joined = (cfg.model, cfg.heads, cfg.head), (cfg.model, cfg.heads * cfg.head)
    rows = [Row(f"{tower}/norm", f"{theirs}/{tower}_norm/scale")]
    if cfg.shared_bias:
        rows.append(Row(f"{tower}/position_bias", _bias_name(theirs), (Transpose(),)))
    else:
        rows.append(Row(f"{ours}/position_bias", _bias_name(layer), (Transpose(),), layers_dim=dim))
    norms = _NORMS[tower] | {"feed_forward_norm": "pre_mlp_layer_norm"}
    rows += [
        Row(f"{ours}/{our_name}", f"{layer}/{name}/scale", layers_dim=dim) for our_name, name in norms.items()
    ]
    inner = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if cfg.gated else {"up": "wi", "down": "wo"}
    rows += [
        Row(f"{ours}/{our_name}", f"{layer}/mlp/{name}/kernel", layers_dim=dim)
        for our_name, name in inner.items()
    ]
    for prefix, attention in _PARTS[tower].items():
        for our_name, name in _ATTENTION.items():
            shape = (
                Reshape((*split[1:], split[0]), joined[::-1]) if our_name == "o" else Reshape(split, joined)
            )
            steps = (shape,) if heads_apart else ()
            rows.append(
                Row(f"{ours}/{prefix}{our_name}", f"{layer}/{attention}/{name}/kernel", steps, (), dim)
            )
    return rows


def _bias_name(prefix: str) -> str:
    return f"{prefix}/relpos_bias/rel_embedding"


def _named(source: Source) -> Source:
    """Return a checkpoint of T5X with our names, as far as they are known."""
    theirs = _with_one_bias(source)
    arrays = theirs.arrays()
    scanned = any(name.startswith("target/encoder/encoder/") for name in arrays)
    query_name = f"target/encoder/{'encoder' if scanned else 'layers_0'}/attention/query/kernel"
    query = arrays.get(query_name)
    if query is None or query.ndim - scanned not in (2, 3) or 0 in query.shape:
        problem = "no such array" if query is None else f"shape {query.shape}"
        raise CheckpointError(
            f"{source} is not a T5 of T5X: expected {query_name} of shape [D, N * H], [D, N, H] or, for all "
            f"layers, [D, L, N * H] or [D, L, N, H]; found {problem}."
        )
    heads_apart = query.ndim - scanned == 3
    heads, head = query.shape[-2:] if heads_apart else (1, query.shape[-1])
    # The map depends on these fields alone.
    partial_config = Config(
        model=query.shape[0],
        heads=heads,
        head=head,
        gated=any(name.endswith("/mlp/wi_0/kernel") for name in arrays),
        tied="target/decoder/logits_dense/kernel" not in arrays,
        shared_bias=_bias_name("target/encoder") in arrays,
    )
    return parameter_map(partial_config, scanned=scanned, heads_apart=heads_apart).to_ours(theirs)


def _with_one_bias(source: Source) -> Source:
    """Return the source with one bias for each of encoder and decoder, if those of all layers are equal."""
    arrays = dict(source.arrays())
    shared = {_bias_name(f"target/{tower}"): _popped_if_equal(arrays, tower) for tower in _STACKS}
    biases = {name: array for name, array in shared.items() if array is not None}
    return as_source(arrays | biases, str(source)) if len(biases) == len(shared) else source


def _popped_if_equal(arrays: dict[str, LazyArray], tower: str) -> LazyArray | None:
    """Remove the biases of all layers, and return the first; None if they differ or there are none."""
    pattern = re.compile(_bias_name(rf"target/{tower}/({tower}|layers_\d+)"))
    biases = [arrays.pop(name) for name in list(arrays) if pattern.fullmatch(name)]
    if len(biases) == 1 and biases[0].ndim == 3:
        biases = [biases[0][:, layer] for layer in range(biases[0].shape[_SCAN_DIM])]
    return biases[0] if len({np.asarray(x).tobytes() for x in biases}) == 1 else None


def _repeated(theirs: Source, cfg: Config) -> Source:
    """Return scanned parameters with the shared bias of positions repeated for each layer."""
    arrays = dict(theirs.arrays())
    for tower, layers in zip(_STACKS, (cfg.layers, cfg.decoder_layers), strict=True):
        shared = arrays.pop(_bias_name(f"target/{tower}"))
        arrays[_bias_name(f"target/{tower}/{tower}")] = stack([shared] * layers, _SCAN_DIM)
    return as_source(arrays, str(theirs))
