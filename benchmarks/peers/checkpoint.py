"""Programs that save and restore a tree of sharded arrays, each as its users would have it."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source

Tree = Any


class Peer(Protocol):
    def save(self, state: Tree, directory: Path) -> Callable[[], None]:
        """Start a save, and return what waits for its end."""
        ...

    def restore(self, directory: Path, wanted: Tree) -> Tree:
        """Return the arrays that were saved, sharded as is wanted."""
        ...


class Ours:
    """Meshwright's checkpoints."""

    def save(self, state: Tree, directory: Path) -> Callable[[], None]:
        checkpoints = Checkpoints(directory).__enter__()
        checkpoints.save(0, state)
        return lambda: checkpoints.__exit__(None, None, None)

    def restore(self, directory: Path, wanted: Tree) -> Tree:
        return restore(open_source(directory), wanted)


class Orbax:
    """Orbax as it is by default: asynchronous, compressed, everything in one key-value store."""

    def save(self, state: Tree, directory: Path) -> Callable[[], None]:
        import orbax.checkpoint as ocp

        checkpointer = ocp.StandardCheckpointer()
        checkpointer.save(directory / "0", state)

        def wait() -> None:
            checkpointer.wait_until_finished()
            checkpointer.close()

        return wait

    def restore(self, directory: Path, wanted: Tree) -> Tree:
        import orbax.checkpoint as ocp

        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(directory / "0", wanted)


class Safetensors:
    """One file, written by one process that gathers everything; read slice by slice."""

    def save(self, state: Tree, directory: Path) -> Callable[[], None]:
        from safetensors.numpy import save_file

        arrays = {
            name: np.ascontiguousarray(np.array(leaf)) for name, leaf in tree.named_leaves(state).items()
        }
        save_file(arrays, directory / "model.safetensors")
        with (directory / "model.safetensors").open("rb") as file:
            os.fsync(file)
        return lambda: None

    def restore(self, directory: Path, wanted: Tree) -> Tree:
        from safetensors import safe_open

        with safe_open(directory / "model.safetensors", "np") as file:
            return tree.map_named(
                lambda name, leaf: jax.make_array_from_callback(
                    leaf.shape, leaf.sharding, file.get_slice(name).__getitem__
                ),
                wanted,
            )


class T5X:
    """T5X's settings, through TensorStore: zarr v2, gzip, chunks of at most 64 MiB, one array at a time."""

    def save(self, state: Tree, directory: Path) -> Callable[[], None]:
        import tensorstore

        for name, leaf in tree.named_leaves(state).items():
            metadata = {
                "shape": leaf.shape,
                "chunks": chunk_shape(leaf.sharding.shard_shape(leaf.shape)),
                "dtype": "<f4",
                "compressor": {"id": "gzip", "level": 1},
            }
            kvstore = {"driver": "file", "path": str(directory / name)}
            spec = {"driver": "zarr", "kvstore": kvstore, "metadata": metadata, "create": True}
            store = tensorstore.open(spec).result()
            for written in [
                store[shard.index].write(np.asarray(shard.data)) for shard in leaf.addressable_shards
            ]:
                written.result()
        return lambda: None

    def restore(self, directory: Path, wanted: Tree) -> Tree:
        import tensorstore

        def one(name: str, leaf: Any) -> jax.Array:
            kvstore = {"driver": "file", "path": str(directory / name)}
            store = tensorstore.open({"driver": "zarr", "kvstore": kvstore}).result()
            return jax.make_array_from_callback(
                leaf.shape, leaf.sharding, lambda index: store[index].read().result()
            )

        return tree.map_named(one, wanted)


def chunk_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Halve a shard's leading dimension until it has at most 64 MiB."""
    while math.prod(shape) * 4 > 64 << 20 and shape[0] % 2 == 0:
        shape = (shape[0] // 2, *shape[1:])
    return shape


PEERS = {"meshwright": Ours(), "orbax": Orbax(), "safetensors": Safetensors(), "t5x": T5X()}
