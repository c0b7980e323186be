"""Names of adapters in PEFT's files, from the table of names of the model.

PEFT names an adapter after the module of the weight, `model.layers.0.self_attn.q_proj`. One module may be
several weights here: GPT-2's `c_attn` is q, k and v side by side. Their adapters then become one of a larger
rank, with all A beside each other and the B in a block diagonal, which adds the same to the weights.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from meshwright.base._internal import tree
from meshwright.checkpoints._internal import Source, as_source
from meshwright.errors import CheckpointError, UsageError, listed
from meshwright.lm._models._map import Map, Row, Transpose
from meshwright.lm._tuning._adapted import parts_of

PREFIX = "base_model.model."
_WEIGHT = ".weight"
Parts = dict[str, dict[str, np.ndarray]]
"""The arrays of an adapter, `lora_a`, `lora_b` and `magnitude`, by the name of the weight."""


def module_of(name: str, names: Map) -> str:
    """Return the module of a weight of ours, with `{}` for the number of the layer."""
    return next(row.theirs.removesuffix(_WEIGHT) for row in names.rows if name in row.names)


def modules_of(names: Map) -> dict[str, str]:
    """Return the modules that may have an adapter, with `{}` for the layer, and a weight of ours of each."""
    return {row.theirs.removesuffix(_WEIGHT): row.names[0] for row in _rows(names)}


def to_theirs(parts: Parts, names: Map) -> Source:
    """Return an adapter with PEFT's names and shapes."""
    linear_names = {name for row in _rows(names) for name in row.names}
    if unknown := sorted(parts.keys() - linear_names):
        raise UsageError(
            f"PEFT's files have no place for the adapter of {listed(unknown)}: only weights of linear layers "
            "can be written. Merge the adapter instead."
        )
    parts = {**parts}
    for row in _rows(names):
        if len(row.names) > 1 and any(name in parts for name in row.names):
            parts |= _joined(row, {name: parts[name] for name in row.names if name in parts})
    arrays = {
        f"{name}/{part}": x
        for name, arrays_of_weight in parts.items()
        for part, x in arrays_of_weight.items()
    }
    return _map(names).to_theirs(as_source(arrays, "the adapter"))


def to_ours(source: Source, names: Map) -> Parts:
    """Return an adapter with the names and shapes here, given one of PEFT's."""
    arrays = {name.removesuffix(_WEIGHT): x for name, x in source.arrays().items()}
    ours = _map(names).to_ours(as_source(arrays, str(source))).arrays()
    unknown = [name for name in ours if name.startswith(PREFIX) or name in arrays]
    if unknown:
        raise CheckpointError(f"{source}: the model has no place for {listed(sorted(unknown))}.")
    parts = parts_of(tree.nested({name: np.asarray(x) for name, x in ours.items()}))
    for row in _rows(names):
        for name in row.names[1:]:
            if name in parts:
                parts[name]["lora_a"] = parts[row.names[0]]["lora_a"]
    return parts


def _rows(names: Map) -> Iterator[Row]:
    """Yield the rows of the weights of linear layers."""
    for row in names.rows:
        is_table = row.names[0] in ("embedding", "positions")
        is_matrix = row.theirs.endswith(_WEIGHT) and row.steps in ((), (Transpose(),))
        if is_matrix and not is_table and not row.num_experts:
            yield row


def _map(names: Map) -> Map:
    """Return the map of the arrays of adapters: PEFT stores all of them as PyTorch's `Linear`, [out, in]."""
    rows = []
    for row in _rows(names):
        module, ours = PREFIX + row.theirs.removesuffix(_WEIGHT), row.names
        a, b, magnitude = (tuple(f"{name}/{part}" for name in ours) for part in _PARTS)
        rows.append(Row(a[0], f"{module}.lora_A", (Transpose(),)))
        if row.sizes:
            rows.append(Row(b, f"{module}.lora_B", (Transpose(),), row.sizes))
            rows.append(Row(magnitude, f"{module}.lora_magnitude_vector", (), row.sizes))
        else:
            rows.append(Row(b[0], f"{module}.lora_B", (Transpose(),)))
            rows.append(Row(magnitude[0], f"{module}.lora_magnitude_vector"))
    return Map(tuple(rows))


_PARTS = ("lora_a", "lora_b", "magnitude")


def _joined(row: Row, parts: Mapping[str, dict[str, np.ndarray]]) -> Parts:
    """Return the adapters of the weights of one module as parts of one adapter."""
    has = [name for name in row.names if "magnitude" in parts.get(name, {})]
    if has and len(has) < len(row.names):
        raise UsageError(
            f"PEFT has one module for {listed(row.names)}, so DoRA must be of all of them or none; it is of "
            f"{listed(has)}."
        )
    first = next(iter(parts.values()))["lora_a"]
    is_shared = len(parts) == len(row.names) and all(
        np.array_equal(x["lora_a"], first) for x in parts.values()
    )
    if is_shared:
        rest = {name: {k: x for k, x in part.items() if k != "lora_a"} for name, part in parts.items()}
        rest[row.names[0]]["lora_a"] = first
        return rest
    # The adapters of one module become one of a larger rank: all A beside each other, the B in a block
    # diagonal.
    ranks = [part["lora_a"].shape[-1] for part in parts.values()]
    starts = dict(zip(parts, np.cumsum([0, *ranks[:-1]]), strict=True))
    joined: Parts = {}
    for name, size in zip(row.names, row.sizes, strict=True):
        whole = np.zeros((*first.shape[:-2], sum(ranks), size), np.float32)
        if name in parts:
            b, start = parts[name]["lora_b"], starts[name]
            whole[..., start : start + b.shape[-2], :] = b
        joined[name] = {"lora_b": whole}
        if has:
            joined[name]["magnitude"] = parts[name]["magnitude"]
    joined[row.names[0]]["lora_a"] = np.concatenate([part["lora_a"] for part in parts.values()], -1)
    return joined
