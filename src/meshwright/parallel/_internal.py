"""The names of `parallel` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.parallel._activations import (
        axes_dividing,
        axes_splitting,
        embedding_lookup,
        feature_axes,
        gather_sequence_dim,
        in_microbatch,
        microbatch_axes,
        position_axes,
        sequence_ways,
        shard_sequence_dim,
        shard_tensor_dim,
        stage_ways,
    )
    from meshwright.parallel._axes import (
        AXES,
        DATA,
        EXPERT,
        FSDP,
        PIPELINE,
        SEQUENCE,
        SPLITTING_STATE,
        TENSOR,
        Axis,
        Use,
        axes_help,
        axis_named,
        elsewhere,
        num_stages,
        plain_axes,
    )
    from meshwright.parallel._copies import as_arrays, check_equal, copy_to, move_to
    from meshwright.parallel._explain import device_bytes, explain
    from meshwright.parallel._idle import check_axes, raise_error
    from meshwright.parallel._infer_rules import infer_rules
    from meshwright.parallel._layout import (
        MICROBATCH,
        Layout,
        axes_of,
        opt_state_shardings,
        parameter_of,
        place,
    )
    from meshwright.parallel._logical import LOGICAL_AXES, explicit, logical
    from meshwright.parallel._meeting import APART, meeting
    from meshwright.parallel._mesh import group_parts, grouped_mesh, in_mesh, make_mesh, mesh_sizes
    from meshwright.parallel._mesh_rules import MeshRule, apply_mesh_rules, hardware, mesh_rule
    from meshwright.parallel._rewrites import (
        layers_of_stage,
        rewrite,
        split_over_stages,
        with_rewrites,
    )
    from meshwright.parallel._rules import Rule, Rules, as_rules, fsdp, match, stages, state_axes
    from meshwright.parallel._sequence import splitting_sequences
else:
    __getattr__, __dir__ = lazy_names(__name__)
