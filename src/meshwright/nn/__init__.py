"""Functions of models that know the mesh: attention, experts, stacked layers, cross entropy.

Each is here because its obvious form costs too much memory, or cannot be split.
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.nn._attention import attention
    from meshwright.nn._cached import CachedAttention, KeyValueCache
    from meshwright.nn._cross_entropy import cross_entropy
    from meshwright.nn._layers import layers
    from meshwright.nn._moe import moe
    from meshwright.nn._routing import Routing
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["CachedAttention", "KeyValueCache", "Routing", "attention", "cross_entropy", "layers", "moe"]
