"""The stream of PRNG keys of a run."""

import jax

from meshwright.training._internal import key_of


class Randomness:
    """A stream of PRNG keys, the same on all processes. Checkpoints save and restore its `key`."""

    def __init__(self, seed: int):
        self.key = key_of(seed)

    def draw(self) -> jax.Array:
        """Return a new key."""
        self.key, new = jax.random.split(self.key)
        return new
