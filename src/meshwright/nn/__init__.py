"""Functions that models are made of, where the obvious form costs too much memory.

`attention` holds no array of queries × keys, however long the rows, and `cross_entropy` the logits of a chunk
of positions only. `moe` sends tokens to their experts, and `layers` marks what a pipeline splits.
`CachedAttention` generates token by token. `proofs` holds attention to its definition on the hardware at
hand. May import `sharding`, `metrics` and ground rooms. A new function is a file here.
"""

from meshwright.nn._attention import Bias, attention
from meshwright.nn._cached import CachedAttention, KeyValueCache
from meshwright.nn._cross_entropy import cross_entropy, token_losses
from meshwright.nn._layers import layers
from meshwright.nn._moe import moe
from meshwright.nn._proof import Proved, proofs
from meshwright.nn._routing import Routing

__all__ = [
    "Bias",
    "CachedAttention",
    "KeyValueCache",
    "Proved",
    "Routing",
    "attention",
    "cross_entropy",
    "layers",
    "moe",
    "proofs",
    "token_losses",
]
