import jax
import pytest
from jax.sharding import AxisType

import meshwright as mw
from meshwright.errors import LayoutError


def test_text_and_mapping_make_the_same_mesh():
    assert mw.make_mesh("data=-1, tensor=2") == mw.make_mesh({"data": 4, "tensor": 2})


def test_minus_one_is_the_rest_of_the_devices():
    assert dict(mw.make_mesh("data=-1,fsdp=2").shape) == {"data": 4, "fsdp": 2}


def test_the_last_axis_is_laid_over_neighbouring_devices():
    devices = mw.make_mesh("data=4,tensor=2").devices
    assert [d.id for d in devices[0]] == [jax.devices()[0].id, jax.devices()[1].id]


def test_axes_are_auto_so_that_ordinary_model_code_runs():
    assert set(mw.make_mesh("data=8").axis_types) == {AxisType.Auto}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data=3", "needs 3 devices, this run has 8"),
        ("data=-1,fsdp=3", "needs a multiple of 3 devices"),
        ("data=2,tensor=2", "Try data=-1"),
        ("data=-1,fsdp=-1", "at most one may be -1"),
        ("data=0", "at least 1"),
        ("data", "cannot read 'data'"),
        ("data=2,data=4", "there twice"),
        ("", "cannot read"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_in_words(text, says):
    with pytest.raises(LayoutError, match=says):
        mw.make_mesh(text)
