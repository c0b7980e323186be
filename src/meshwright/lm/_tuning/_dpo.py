"""Direct preference optimisation: training on pairs of answers, one of which was preferred.

Source: Rafailov et al., 2023 (arXiv 2305.18290), equation 7. With y the preferred answer, z the other one,
and p and r the probabilities that the trained model and a fixed reference give them, the loss of a pair is

    -log sigmoid(beta (log p(y) - log r(y) - log p(z) + log r(z)))

The reference never changes. So its log-probabilities are computed once, before training, and are a part of
the examples.
"""

import functools
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree, local_path, parse_object, read_file, tree, write_whole
from meshwright.data._internal import facts_of, numbered_batches
from meshwright.engine._internal import BatchedPredict, fingerprint
from meshwright.errors import InputError, UsageError
from meshwright.lm._tuning._families import Config, rows_score
from meshwright.parallel._internal import Layout
from meshwright.processes._internal import on_lead
from meshwright.training._internal import Loss

CHOSEN, REJECTED, REFERENCE = "chosen", "rejected", "reference"

LogProbabilities = Callable[[PyTree, PyTree], jax.Array]
"""A function `(params, rows)` that returns the log-probability of each row's answer, float32[rows]."""


def log_probabilities(cfg: Config) -> LogProbabilities:
    """Return the function that computes the log-probability of each row of a reference model.

    Rows are as `read_rows` or, for T5, `read_pair_rows` returns them. Tokens with the weight 0, those of the
    question, do not count.

    Args:
      cfg: The config of the model.

    Example:
      >>> cfg = mw.lm.decoder.Config(vocabulary=16, model=8, layers=1, heads=2, feed_forward=16)
      >>> rows = {"tokens": np.ones((2, 4), np.int32), "segments": np.ones((2, 4), np.int32)}
      >>> log_probs = mw.lm.log_probabilities(cfg)
      >>> params = jax.eval_shape(lambda key: mw.lm.decoder.init(cfg, key), mw.training.key_of(0))
      >>> jax.eval_shape(log_probs, params, rows | {"weights": np.ones((2, 4))}).shape
      (2,)
    """
    return functools.partial(_row_log_probs, cfg)


def _row_log_probs(cfg: Config, params: PyTree, rows: Mapping[str, jax.Array]) -> jax.Array:
    return -jnp.asarray(rows_score(cfg, params, rows)["loss"].total)


def with_reference(
    examples: Mapping[str, Any],
    log_probs: LogProbabilities,
    params: PyTree,
    layout: Layout,
    *,
    path: str | Path,
    batch_size: int = 8,
) -> dict[str, Any]:
    """Return pairs with the log-probabilities of the reference, computed once and stored. Collective.

    Args:
      examples: `{"chosen": rows, "rejected": rows}`, arrays with a row for each pair.
      log_probs: The function that computes log-probabilities.
      params: The parameters of the reference, usually those that training begins from.
      layout: The mesh to compute on.
      path: A local file. If it exists, it is read and nothing is computed.
      batch_size: The number of pairs that are computed at a time, over all devices.

    Returns:
      The examples with `"reference"`: `{"chosen": float32[pairs], "rejected": float32[pairs]}`.

    Raises:
      UsageError: The examples have other parts; or the file is of other examples or parameters.
      InputError: The file is damaged.

    Example:
      >>> pairs = {"chosen": {"x": np.arange(8.0)}, "rejected": {"x": -np.arange(8.0)}}
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> log_probs = lambda params, rows: params["w"] * rows["x"]
      >>> params = {"w": np.float32(0.5)}
      >>> pairs = mw.lm.with_reference(pairs, log_probs, params, layout, path="reference.json")
      >>> pairs["reference"]["chosen"][:3].tolist()
      [0.0, 0.5, 1.0]
    """
    if missing := {CHOSEN, REJECTED} - examples.keys():
        raise UsageError(f"the pairs lack {', '.join(sorted(missing))}; they have {', '.join(examples)}.")
    pairs, file = {name: examples[name] for name in (CHOSEN, REJECTED)}, local_path(path)
    facts = json.dumps(facts_of(pairs), sort_keys=True)
    digests = {"examples": f"{zlib.crc32(facts.encode()):08x}", "parameters": fingerprint(params, layout)}
    values = on_lead(lambda: _stored(file, digests))
    if values is None:
        values = _computed(pairs, log_probs, params, layout, batch_size)
        content = json.dumps({**digests, **values}).encode()

        def write() -> None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, content)

        on_lead(write)
    return {**examples, REFERENCE: {name: np.asarray(values[name], np.float32) for name in pairs}}


def _stored(file: Path, digests: Mapping[str, str]) -> dict[str, list[float]] | None:
    try:
        content = parse_object(read_file(file))
        values = {name: [float(x) for x in content[name]] for name in (CHOSEN, REJECTED)}
        other = [name for name, digest in digests.items() if content[name] != digest]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} has no log-probabilities of a reference: {error!r}. Remove it.") from None
    if other:
        raise UsageError(
            f"{file} has the log-probabilities of other {' and '.join(other)}. Give another file, or remove "
            "it."
        )
    return values


def _computed(
    pairs: Mapping[str, Any], log_probs: LogProbabilities, params: PyTree, layout: Layout, batch_size: int
) -> dict[str, list[float]]:
    def pair_log_probs(params: PyTree, model_state: PyTree, batch: PyTree, key: jax.Array) -> PyTree:
        return {name: log_probs(params, batch[name]) for name in (CHOSEN, REJECTED)}

    batches = numbered_batches(pairs, batch_size, layout.batch_sharding)
    parts = [outputs for _, outputs in BatchedPredict(pair_log_probs, layout, 0)(params, None, batches)]
    return {name: np.concatenate([part[name] for part in parts]).tolist() for name in (CHOSEN, REJECTED)}


def dpo(log_probs: LogProbabilities, *, beta: float = 0.1) -> Loss:
    """Return the loss of pairs with the log-probabilities of their reference.

    Its metrics are `accuracy`, the share of pairs whose preferred answer has gained more than the other, and
    `margin`, beta times how much more it has gained.

    Args:
      log_probs: The function that computes log-probabilities.
      beta: How much is lost by moving away from the reference.

    Raises:
      UsageError: `beta` is not above 0. Or, when it is called, the batch has no reference.

    Example:
      >>> log_probs = lambda params, rows: params["w"] * rows["x"]
      >>> reference = {"chosen": np.zeros(2), "rejected": np.zeros(2)}
      >>> pairs = {"chosen": {"x": np.ones(2)}, "rejected": {"x": -np.ones(2)}, "reference": reference}
      >>> loss, metrics = mw.lm.dpo(log_probs)({"w": jnp.float32(5)}, pairs)
      >>> print(round(float(loss), 4), metrics["accuracy"])
      0.3133 1.0
    """
    if not beta > 0:
        raise UsageError(f"dpo: beta is {beta}; it must be above 0.")

    def loss(params: PyTree, batch: Mapping[str, Any]) -> tuple[jax.Array, dict[str, jax.Array]]:
        if REFERENCE not in batch:
            raise UsageError(
                f"dpo: the batch has {', '.join(tree.leaf_names(batch))}, but no reference. `with_reference` "
                "adds it to the examples."
            )
        gained = {
            name: log_probs(params, batch[name]) - batch[REFERENCE][name] for name in (CHOSEN, REJECTED)
        }
        margin = beta * (gained[CHOSEN] - gained[REJECTED])
        metrics = {"accuracy": (margin > 0).mean(dtype=jnp.float32), "margin": margin.mean()}
        return -jax.nn.log_sigmoid(margin).mean(), metrics

    return loss
