"""Meshes, rules, layouts, and the inference of rules.

_mesh, _mesh_rules         meshes from text, and settings by hardware
_rules, _layout            rules for the names of parameters, and the sharding of each array
_infer_rules, _trace, …    rules that are inferred from a loss
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.base._internal import leaf_names, nbytes, optional
    from meshwright.parallel._activations import (
        embedding_lookup,
        gather_sequence_dim,
        shard_batch_dim,
        shard_sequence_dim,
        shard_tensor_dim,
    )
    from meshwright.parallel._copies import copy_to
    from meshwright.parallel._logical import logical
    from meshwright.parallel._mesh_rules import apply_mesh_rules, hardware, override
    from meshwright.parallel._rules import fsdp, match, stages
    from meshwright.processes._internal import (
        barrier,
        detect_processes,
        is_lead,
        start_processes,
        stop_signals,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "apply_mesh_rules",
    "barrier",
    "copy_to",
    "detect_processes",
    "embedding_lookup",
    "fsdp",
    "gather_sequence_dim",
    "hardware",
    "is_lead",
    "leaf_names",
    "logical",
    "match",
    "nbytes",
    "optional",
    "override",
    "shard_batch_dim",
    "shard_sequence_dim",
    "shard_tensor_dim",
    "stages",
    "start_processes",
    "stop_signals",
]
