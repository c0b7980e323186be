"""Models, those here and users', on each mesh axis and on three at once: losses and gradients of one device.

CI tries each model once and each mesh once, here or in `test_pipeline.py`, `nn/test_moe.py`,
`nn/test_ring.py` or `end_to_end/test_across.py`; `make nightly` tries all pairs.
"""

import jax
import numpy as np
import pytest

from lm.models.on_meshes import MODELS, of_one_device, updated
from pairs import pairs

PLAIN = ["data=8", "fsdp=8", "data=4,tensor=2", "data=4,pipeline=2", "pipeline=2,fsdp=2,tensor=2"]
ROWS = ["data=4,sequence=2", "fsdp=2,sequence=2,tensor=2", "pipeline=2,fsdp=2,sequence=2"]
EXPERTS = ["data=4,expert=2", "data=2,sequence=2,expert=2", "data=2,pipeline=2,expert=2"]

EACH_TIME = [(PLAIN[0], "nnx"), (PLAIN[1], "equinox"), (PLAIN[2], "vit"), (PLAIN[3], "gpt2")]


def check(name, mesh, without=()):
    expected, loss = of_one_device(name, without)
    found, other = updated(name, mesh, 8, without=without)
    assert other == pytest.approx(loss, rel=2e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), found, expected)


@pytest.mark.parametrize(("mesh", "name"), pairs(PLAIN, [*MODELS], EACH_TIME))
def test_data_features_and_layers_are_split(name, mesh):
    check(name, mesh)


@pytest.mark.parametrize(
    ("mesh", "name"),
    pairs(ROWS, ["decoder", "mixture", "gpt2", "t5", "vit"], [(ROWS[1], "t5"), (ROWS[2], "decoder")]),
)
def test_rows_are_split(name, mesh):
    check(name, mesh)


@pytest.mark.parametrize(("mesh", "name"), pairs(ROWS, ["decoder", "mixture", "gpt2"], [(ROWS[0], "gpt2")]))
def test_rows_that_are_not_packed_are_split(name, mesh):
    check(name, mesh, without=("segments",))


@pytest.mark.parametrize(("mesh", "is_packed"), pairs(EXPERTS, [True, False], [(EXPERTS[1], True)]))
def test_experts_are_split(mesh, is_packed):
    check("mixture", mesh, () if is_packed else ("segments",))
