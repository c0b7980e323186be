"""Every real checkpoint of another system is what it should be, on one device and on several."""

import jax
import pytest

import meshwright as mw
from checkpoints.formats.readers.real import REAL, assert_restored, wanted_of


@pytest.mark.others
@pytest.mark.parametrize(("num_devices", "shape"), [(1, "data=1"), (8, "data=2,fsdp=2,tensor=2")])
@pytest.mark.parametrize("path", REAL)
def test_a_real_checkpoint_is_restored_leaf_for_leaf(path, num_devices, shape, real_checkpoints):
    mesh = mw.make_mesh(shape, devices=jax.devices()[:num_devices])
    assert_restored(real_checkpoints / path, wanted_of(path), mesh)
