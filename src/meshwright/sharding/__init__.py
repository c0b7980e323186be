"""Placement of arrays on devices: meshes, rules that split parameters, layouts, and optimizer state.

A mesh and rules make a `Layout`; `auto` infers rules from a model's program or, without one, from its
shapes. May import `process`, `program` and the ground floor. Add a kind of rule as a file like
`_rules.py`; any function `(name, array, mesh) -> PartitionSpec or None` is one.
"""

from meshwright.sharding._activations import (
    axes_dividing,
    axes_splitting,
    embedding_lookup,
    gather_sequence_dim,
    in_microbatch,
    sequence_ways,
    shard_batch_dim,
    shard_sequence_dim,
    shard_tensor_dim,
)
from meshwright.sharding._auto import Auto, auto
from meshwright.sharding._convolutions import adding_right, as_function, mended
from meshwright.sharding._copies import compare_given, copy_to, move_to
from meshwright.sharding._explain import PlacementTable, device_bytes, explain
from meshwright.sharding._foreign import as_arrays
from meshwright.sharding._given import Rules, as_rules
from meshwright.sharding._idle import check_axes, refused
from meshwright.sharding._layout import (
    AXES,
    EXPERT,
    MICROBATCH,
    PIPELINE,
    SEQUENCE,
    STACK,
    Layout,
    axes_of,
    place,
)
from meshwright.sharding._logical import LOGICAL_AXES, logical
from meshwright.sharding._meeting import APART, meeting
from meshwright.sharding._mesh import group_parts, grouped_mesh, in_mesh, make_mesh, mesh_sizes
from meshwright.sharding._mesh_rules import (
    MeshRule,
    Override,
    apply_mesh_rules,
    hardware,
    mesh_rule,
    override,
)
from meshwright.sharding._optimizer import beside_params, parameter_of
from meshwright.sharding._rules import Rule, fsdp, match, stages
from meshwright.sharding._sequence import splitting_sequences
from meshwright.sharding._stages import indivisible
from meshwright.sharding._stated import stated

__all__ = [
    "APART",
    "AXES",
    "EXPERT",
    "LOGICAL_AXES",
    "MICROBATCH",
    "PIPELINE",
    "SEQUENCE",
    "STACK",
    "Auto",
    "Layout",
    "MeshRule",
    "Override",
    "PlacementTable",
    "Rule",
    "Rules",
    "adding_right",
    "apply_mesh_rules",
    "as_arrays",
    "as_function",
    "as_rules",
    "auto",
    "axes_dividing",
    "axes_of",
    "axes_splitting",
    "beside_params",
    "check_axes",
    "compare_given",
    "copy_to",
    "device_bytes",
    "embedding_lookup",
    "explain",
    "fsdp",
    "gather_sequence_dim",
    "group_parts",
    "grouped_mesh",
    "hardware",
    "in_mesh",
    "in_microbatch",
    "indivisible",
    "logical",
    "make_mesh",
    "match",
    "meeting",
    "mended",
    "mesh_rule",
    "mesh_sizes",
    "move_to",
    "override",
    "parameter_of",
    "place",
    "refused",
    "sequence_ways",
    "shard_batch_dim",
    "shard_sequence_dim",
    "shard_tensor_dim",
    "splitting_sequences",
    "stages",
    "stated",
]
