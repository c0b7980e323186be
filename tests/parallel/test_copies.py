import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.parallel import _copies
from meshwright.processes import _internal as processes


@pytest.fixture(autouse=True)
def on_an_accelerator(monkeypatch):
    """Take the arrays of the CPU for those of another device, whose copies to the host take time."""
    monkeypatch.setattr(_copies, "_is_on_host", lambda x: False)


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "complex64"])
def test_an_array_on_devices_is_known_by_a_sum_of_its_bits_in_their_order(dtype, monkeypatch):
    monkeypatch.setattr(processes, "digest_of", pytest.fail)  # which copies all to the host
    bits = np.random.default_rng(0).integers(0, 2, (4, 6, 8))
    x = jnp.asarray(bits, dtype)
    bits[3, 5, 7] ^= 1
    one = jnp.asarray(bits, dtype)
    others = [one, x[::-1], x[:, ::-1], x[..., ::-1], x.reshape(4, 8, 6), jnp.swapaxes(x, 0, 1)]
    assert len({_copies._digest(y) for y in (x, *others)}) == 7


def test_an_array_is_known_by_the_same_sum_however_it_is_placed():
    x = jnp.arange(64.0).reshape(8, 8)
    for mesh, spec in (("data=8", P("data")), ("data=2,fsdp=4", P("fsdp", "data")), ("data=8", P())):
        placed = jax.device_put(x, jax.NamedSharding(mw.make_mesh(mesh), spec))
        assert _copies._digest(placed) == _copies._digest(x)


def test_numbers_of_64_bits_zeros_of_either_sign_and_keys_are_told_apart():
    with jax.enable_x64(True):
        different = jnp.asarray([-1, 0, 2**32 + 1, 2**32]), jnp.asarray([0.1, -0.0, 0.0, 5e-324])
        numbers = {_copies._digest(x) for array in different for x in array}
    assert len(numbers) == 8
    assert _copies._digest(jax.random.key(1)) != _copies._digest(jax.random.key(2))
