"""States that are saved in tests, as fixtures."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.checkpoints._checkpoints import Checkpoints


@pytest.fixture(scope="session")
def make_state(mesh):
    """Return a function that makes a state sharded in several ways; equal seeds give equal states."""

    def make(seed=0):
        random = np.random.default_rng(seed)

        def array(shape, dtype, *spec):
            values = random.standard_normal(shape, np.float32).astype(dtype)
            return jax.device_put(values, NamedSharding(mesh, P(*spec)))

        return {
            "step": jax.device_put(jnp.int32(7), NamedSharding(mesh, P())),
            "params": {"w": array((16, 8), jnp.bfloat16, "fsdp", "tensor"), "b": array(8, np.float32)},
            "opt_state": [
                array((16, 8), np.float32, ("data", "fsdp")),
                array((4, 8, 2), np.float32, None, "tensor"),
            ],
        }

    return make


@pytest.fixture
def state(make_state):
    return make_state()


@pytest.fixture
def save(tmp_path):
    """Return a function that saves one state and returns the directory of its checkpoint."""

    def save_one(state, step=800, extra=None):
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(step, state, extra)
        return tmp_path / f"step_{step:08d}"

    return save_one


@pytest.fixture(scope="session")
def same_bytes():
    """Return a function that tells whether two trees hold the same bytes in arrays of the same types."""

    def same(left, right):
        def one(a, b):
            a, b = np.asarray(a), np.asarray(b)
            return (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())

        return jax.tree.all(jax.tree.map(one, left, right))

    return same


@dataclass(frozen=True)
class Device:
    id: int
    process_index: int


@dataclass(frozen=True)
class OverProcesses:
    """A sharding whose devices belong to several processes, as many to each."""

    real: NamedSharding
    num_processes: int
    is_fully_addressable = False

    def shard_shape(self, shape):
        return self.real.shard_shape(shape)

    def devices_indices_map(self, shape):
        share = self.real.num_devices // self.num_processes
        indices = self.real.devices_indices_map(shape)
        return {Device(device.id, device.id // share): index for device, index in indices.items()}


@pytest.fixture(scope="session")
def over_processes():
    """Return a function that makes a sharding over several processes of one over this one's devices."""
    return OverProcesses
