"""Keep the optimizer's state in the host's memory between steps, which saves device memory but takes time."""

import jax
from jax.sharding import Mesh, NamedSharding

from meshwright.base._internal import PyTree
from meshwright.errors import UsageError
from meshwright.parallel._internal import SPLITTING_STATE


def in_memory(kind: str | None, arrays: PyTree, shardings: PyTree) -> PyTree:
    """Return `shardings` in another memory. Scalars stay on the devices, because they need little memory."""
    if kind is None:
        return shardings

    def with_memory(x: jax.ShapeDtypeStruct, sharding: NamedSharding) -> NamedSharding:
        if isinstance(sharding.mesh, Mesh):  # an abstract mesh has no devices to check
            _check_memory(kind, sharding.mesh.local_devices[0])
        return sharding.with_memory_kind(kind) if x.ndim else sharding

    return jax.tree.map(with_memory, arrays, shardings)


def on_devices(arrays: PyTree) -> PyTree:
    """Return `arrays` in the devices' memory, with the same shardings. Arrays there are not copied."""
    return jax.device_put(arrays, jax.memory.Space.Device)


def _check_memory(kind: str, device: jax.Device) -> None:
    kinds = [memory.kind for memory in device.addressable_memories()]
    if kinds and kind not in kinds:  # a description of a device that is not here has none
        raise UsageError(
            f"the optimizer's state cannot be kept in memory {kind!r}: {device.platform} "
            f"({device.device_kind}) has {', '.join(kinds)}.\n  Keep it on the devices: leave out "
            f"`offload_opt_state`. If it does not fit, take {SPLITTING_STATE}."
        )
