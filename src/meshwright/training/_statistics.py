"""The size of a state, as numbers and as a table for the start of a run."""

from collections.abc import Collection
from typing import Any

import jax

from meshwright.base._internal import PyTree, human_bytes, tree
from meshwright.parallel._internal import device_bytes, explain
from meshwright.training._state import TrainState


def num_params(params: PyTree) -> int:
    """Return the number of elements of all arrays or structs of `params`.

    Example:
      >>> mw.training.num_params({"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)})
      10
    """
    return sum(x.size for x in jax.tree.leaves(params))


def state_sizes(state: TrainState) -> dict[str, int]:
    """Return the sizes of a state, of arrays or of structs with shardings, as numbers to report.

    The numbers are `num_params`; the bytes of `params`, `opt_state` and `model_state`, each array counted
    once however it is sharded; and `device_bytes`, the bytes on one device.
    """
    parts = {name: tree.nbytes(part) for name, part in _parts(state).items()}
    return {
        "num_params": num_params(state.params),
        **{f"{name}_bytes": num_bytes for name, num_bytes in parts.items()},
        "device_bytes": _device_bytes(state),
    }


def describe_state(state: TrainState, frozen: Collection[str] = ()) -> str:
    """Return the table of the parameters, the optimizer's state and the model's, then the size of each part.

    Args:
      state: The state, as arrays or as the structs with shardings that `abstract_state` returns.
      frozen: The names of arrays that are not trained, `params/encoder/w`. The table marks them.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> state = mw.training.init_state(lambda key: {"w": jnp.zeros((4, 2))}, optax.sgd(0.1), 0, layout)
      >>> print(mw.training.describe_state(state))
      name      shape  dtype    spec        parameters  per device
      params/w  4 × 2  float32  replicated           8        32 B
      total                                          8        32 B
      num_params: 8
      params: 32 B, 32 B per device
      opt_state: 0 B, 0 B per device
    """
    parts = _parts(state)
    sizes = [
        f"{name}: {human_bytes(tree.nbytes(part))}, {human_bytes(_device_bytes(part))} per device"
        for name, part in parts.items()
    ]
    table = explain(parts, jax.tree.map(lambda x: x.sharding, parts), frozen=frozen)
    return "\n".join([table, f"num_params: {num_params(state.params):,}", *sizes])


def _parts(state: TrainState) -> dict[str, Any]:
    parts = {"params": state.params, "opt_state": state.opt_state, "model_state": state.model_state}
    return {name: part for name, part in parts.items() if part is not None}


def _device_bytes(part: PyTree) -> int:
    return sum(device_bytes(x, x.sharding) for x in jax.tree.leaves(part))
