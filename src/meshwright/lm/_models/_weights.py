"""The weight of each label of a batch in the loss of a reference model."""

from collections.abc import Mapping

import jax


def label_weights(is_counted: jax.Array | None, weights: jax.Array | None) -> jax.Array | None:
    """Return the weights of labels of which some may not count at all; None if each counts 1."""
    if is_counted is None or weights is None:
        return is_counted if weights is None else weights
    return is_counted * weights


def next_token_weights(batch: Mapping[str, jax.Array]) -> jax.Array | None:
    """Return the weights of all tokens but the first of a row, each predicted from those before it.

    Padding and the first token of each segment do not count.
    """
    labels = {name: batch[name][:, 1:] for name in ("segments", "is_token", "weights") if name in batch}
    is_counted = labels.get("is_token")
    if "segments" in labels:
        in_segment = (batch["segments"][:, :-1] == labels["segments"]) & (labels["segments"] != 0)
        is_counted = in_segment if is_counted is None else in_segment & is_counted
    return label_weights(is_counted, labels.get("weights"))
