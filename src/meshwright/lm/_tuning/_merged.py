"""Weights of files with an adapter added, a part at a time and on the host.

So a model of any size is merged on one machine, whatever the number of processes that trained the adapter,
and on no device.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from meshwright.base._internal import tree
from meshwright.checkpoints._internal import Index, LazyArray, Source, as_source, source_of
from meshwright.errors import CheckpointError, did_you_mean
from meshwright.lm._tuning._adapted import parts_of
from meshwright.lm._tuning._lora import Lora, check_part


def merged_source(base: Source, adapter: tree.PyTree | Source, lora: Lora) -> Source:
    """Return a source of the model's parameters with an adapter added, lazily.

    Each weight is computed in float32, and has the dtype that it has in `base`.

    Args:
      base: The parameters that the adapter was trained for, `hugging_face.open_model(path)`. They need not be
        quantised, also if the adapter was trained beside quantised ones.
      adapter: The adapter: `state.params["adapter"]`, or of a run
        `mw.checkpoints.subtree(mw.checkpoints.open_source(run), "params/adapter")`.
      lora: The description of the adapter.

    Raises:
      CheckpointError: The adapter has a weight that the base lacks, or of another shape.

    Example:
      >>> base = mw.checkpoints.as_source({"w": np.ones((4, 2), np.float16)}, "the base")
      >>> part = {"lora_a": np.ones((4, 1), np.float32), "lora_b": np.ones((1, 2), np.float32)}
      >>> merged = mw.lm.merged_source(base, {"w": part}, mw.lm.lora("w", rank=1))
      >>> np.asarray(merged.arrays()["w"])[0]
      array([2., 2.], dtype=float16)
    """
    arrays, parts = dict(base.arrays()), parts_of(tree.nested(source_of(adapter, "the adapter").arrays()))
    for name, part in parts.items():
        if name not in arrays:
            hint = did_you_mean(name, arrays)
            raise CheckpointError(f"the adapter is of {name}, which {base} does not have.{hint}")
        check_part(name, arrays[name], part, lora)
        arrays[name] = _merged(name, arrays[name], part, lora)
    return as_source(arrays, str(base))


def _merged(name: str, weight: LazyArray, part: Mapping[str, LazyArray], lora: Lora) -> LazyArray:
    is_plain = lora.letters(name, weight) == "s" * (weight.ndim - 2) + "io"

    def read(index: Index) -> np.ndarray:
        # Other dimensions are mixed in the matrices, so such a weight is merged whole, and then indexed.
        if not is_plain:
            whole = {part_name: np.asarray(x) for part_name, x in part.items()}
            return np.asarray(lora.added(name, np.asarray(weight), whole))[index]
        *stack, rows, columns = index
        # The norm of an output is that of all its inputs.
        needed = slice(None) if lora.dora else rows
        a = np.asarray(part["lora_a"].read((*stack, needed, slice(None))), np.float32)
        b = np.asarray(part["lora_b"].read((*stack, slice(None), columns)), np.float32)
        wide = weight.read((*stack, needed, columns)).astype(np.float32) + lora.scale * (a @ b)
        if lora.dora:
            gain = np.asarray(part["magnitude"].read((*stack, columns)), np.float32)
            wide *= (gain / np.sqrt((wide * wide).sum(-2)))[..., None, :]
            wide = wide[..., rows, :]
        return wide.astype(weight.dtype)

    return dataclasses.replace(weight, read=read)
