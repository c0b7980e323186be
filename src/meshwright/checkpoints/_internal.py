"""The names of `checkpoints` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.checkpoints._arrays._cast import Casts, cast_dtypes, keys_as_data, type_name
    from meshwright.checkpoints._arrays._diff import Difference, diff
    from meshwright.checkpoints._arrays._lazy import Index, LazyArray, concatenate, in_memory, stack
    from meshwright.checkpoints._arrays._match import Assign, origins
    from meshwright.checkpoints._arrays._restore import restore, restore_lazily
    from meshwright.checkpoints._arrays._source import Opened, Source, as_source, cast, subtree
    from meshwright.checkpoints._checkpoints import Checkpoints
    from meshwright.checkpoints._choice import checkpoints_of, chosen_step, open_best, settings_at
    from meshwright.checkpoints._convert import convert, with_changes, with_native_names
    from meshwright.checkpoints._directory import (
        complete_steps,
        is_locked,
        reason_set_aside,
        set_aside_after,
        set_aside_names,
        step_name,
    )
    from meshwright.checkpoints._exports import TreeSource, local, source_of, staged
    from meshwright.checkpoints._format._snapshot import HOST_NBYTES
    from meshwright.checkpoints._format._verify import Report
    from meshwright.checkpoints._formats._export_npz import export_npz
    from meshwright.checkpoints._formats._export_safetensors import DTYPES as SAFETENSORS_DTYPES
    from meshwright.checkpoints._formats._export_safetensors import export_safetensors
    from meshwright.checkpoints._formats._export_safetensors import write_file as write_safetensors
    from meshwright.checkpoints._formats._export_seqax import export_seqax
    from meshwright.checkpoints._formats._export_t5x import export_t5x, t5x_names
    from meshwright.checkpoints._formats._flat_tokens import flat_tokens
    from meshwright.checkpoints._formats._inspect import Contents, contents, is_pinned, pin, unpin, verify_all
    from meshwright.checkpoints._formats._open import find_step, open_source
    from meshwright.checkpoints._host_memory._budget import InMemory
    from meshwright.checkpoints._retention import Keep, best, keep_any, last, metrics_of
    from meshwright.checkpoints._scores import Mode, kept_by, mode_of, score_and_mode
else:
    __getattr__, __dir__ = lazy_names(__name__)
