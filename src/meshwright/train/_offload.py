"""The optimizer's state in the host's memory between steps: room on the devices for transfer time."""

import jax
from jax.sharding import Mesh, NamedSharding

from meshwright.errors import UsageError
from meshwright.tree import PyTree


def in_memory(kind: str | None, arrays: PyTree, shardings: PyTree) -> PyTree:
    """Return `shardings` with arrays in the memory of a `kind`, "pinned_host" say; None: where they are.

    Scalars stay on the devices: they are not worth a transfer.

    Raises:
      UsageError: the devices have no such memory.
    """
    if kind is None:
        return shardings

    def one(x: jax.ShapeDtypeStruct, sharding: NamedSharding) -> NamedSharding:
        if isinstance(sharding.mesh, Mesh):  # of an abstract one nothing is known
            _check_memory(kind, sharding.mesh.local_devices[0])
        return sharding.with_memory_kind(kind) if x.ndim else sharding

    return jax.tree.map(one, arrays, shardings)


def on_devices(arrays: PyTree) -> PyTree:
    """Return `arrays` in the devices' memory, split as they are; those that are there stay."""
    return jax.device_put(arrays, jax.memory.Space.Device)


def _check_memory(kind: str, device: jax.Device) -> None:
    kinds = [memory.kind for memory in device.addressable_memories()]
    if kind not in kinds:
        raise UsageError(
            f"the optimizer's state cannot be kept in memory {kind!r}: {device.platform} "
            f"({device.device_kind}) has {', '.join(kinds)}.\n  Keep it on the devices: leave out "
            "`offload_opt_state`, and shard it further (fsdp) if it does not fit."
        )
