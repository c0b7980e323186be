"""The stream of keys that a run draws from."""

import jax

from meshwright.train import key_of


class Randomness:
    """A stream of PRNG keys, the same on all processes. Checkpoints keep its `key` and set it again."""

    def __init__(self, seed: int):
        self.key = key_of(seed)

    def draw(self) -> jax.Array:
        """Return a new key."""
        self.key, new = jax.random.split(self.key)
        return new
