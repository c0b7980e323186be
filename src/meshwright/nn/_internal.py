"""The names of `nn` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.nn._attention import Bias, attention
    from meshwright.nn._cached import CachedAttention, KeyValueCache
    from meshwright.nn._cross_entropy import cross_entropy, token_losses
    from meshwright.nn._layers import layers
    from meshwright.nn._moe import moe
    from meshwright.nn._routing import Routing
    from meshwright.nn._self_check import self_check
else:
    __getattr__, __dir__ = lazy_names(__name__)
