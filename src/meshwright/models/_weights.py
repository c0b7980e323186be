"""How much each label of a batch counts in the loss of a reference model."""

import jax


def label_weights(is_counted: jax.Array | None, weights: jax.Array | None) -> jax.Array | None:
    """Return the weights of labels of which some may not count at all; None if each counts 1."""
    if is_counted is None or weights is None:
        return is_counted if weights is None else weights
    return is_counted * weights
