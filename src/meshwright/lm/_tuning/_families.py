"""Facts of each reference model for tuning: its loss and score, its matrices, and the rows that it takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from meshwright.base._internal import PyTree
from meshwright.engine._internal import token_means
from meshwright.errors import UsageError
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.lm._tuning._examples import Rows, read_pair_rows, read_rows
from meshwright.observe._internal import Mean
from meshwright.parallel._internal import Rule

Config = decoder.Config | gpt2.Config | t5.Config
Batch = Mapping[str, jax.Array]


@dataclass(frozen=True)
class Family:
    """Functions of the config of a model, and more facts about it."""

    init: Callable[..., PyTree]
    """Returns parameters: `(cfg, key, dtype)`."""
    loss: Callable[..., Mean]
    """Returns the mean loss of a batch: `(cfg, params, batch, remat=)`."""
    score: Callable[[Any, PyTree, Batch], dict[str, Mean]]
    """Returns the sum of the losses of each row, and the sum of its weights."""
    rules: tuple[Rule, ...]
    """The rules that split the parameters over a mesh."""
    weights: str
    """A pattern for the matrices of the layers, which are adapted and quantised."""
    labels: str
    """The name of the array of tokens that are predicted."""
    read: Callable[..., Rows]
    """Reads a file as rows: `(path, length, model, vocabulary=)`."""


def family_of(cfg: Config) -> Family:
    """Return the family of a model."""
    for kind, family in _FAMILIES.items():
        if isinstance(cfg, kind):
            return family
    raise UsageError(f"tuning takes the config of a reference model; found {type(cfg).__name__}.")


def rows_score(cfg: Config, params: PyTree, batch: Batch) -> dict[str, Mean]:
    """Return the sum of the losses of each row, and the sum of its weights: `loss` is then per token."""
    return family_of(cfg).score(cfg, params, batch)


def _next_token_score(losses: Callable[..., jax.Array]) -> Callable[[Any, PyTree, Batch], dict[str, Mean]]:
    """Return the score of a model that predicts each token from those before it."""

    def score(cfg: Any, params: PyTree, batch: Batch) -> dict[str, Mean]:
        tokens, segments = batch["tokens"], batch.get("segments")
        token_losses = losses(cfg, params, tokens, segments, remat="nothing")
        return token_means(token_losses, tokens, segments, batch.get("weights"))

    return score


def _t5_score(cfg: t5.Config, params: PyTree, batch: Batch) -> dict[str, Mean]:
    losses = t5.losses(cfg, params, dict(batch), remat="nothing")
    return token_means(losses, batch["targets"], batch.get("is_target"), batch.get("weights"))


_FAMILIES: dict[type, Family] = {
    decoder.Config: Family(
        init=decoder.init,
        loss=decoder.loss,
        score=_next_token_score(decoder.losses),
        rules=decoder.RULES,
        weights="layers/(q|k|v|o|gate|up|down)",
        labels="tokens",
        read=read_rows,
    ),
    gpt2.Config: Family(
        init=gpt2.init,
        loss=gpt2.loss,
        score=_next_token_score(gpt2.losses),
        rules=gpt2.RULES,
        weights="layers/(q|k|v|o|up|down)",
        labels="tokens",
        read=read_rows,
    ),
    t5.Config: Family(
        init=t5.init,
        loss=t5.loss,
        score=_t5_score,
        rules=t5.RULES,
        weights="(encoder|decoder)/layers/((cross_)?[qkvo]|gate|up|down)",
        labels="targets",
        read=read_pair_rows,
    ),
}
