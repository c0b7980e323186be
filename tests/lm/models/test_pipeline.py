"""Models on the axis `pipeline`, those here and users', beside one device."""

import jax
import numpy as np
import pytest

from lm.models.on_meshes import of_one_device, updated
from meshwright.errors import UsageError
from pairs import case, pairs

FOUR_STAGES = ("data=2,pipeline=4", 1)
TWO_STAGES = ("pipeline=2,fsdp=2,tensor=2", 2)


@pytest.mark.parametrize(
    ("name", "mesh", "rounds"),
    pairs(
        ["decoder", "gpt2", "t5", "nnx", "equinox"],
        [FOUR_STAGES, TWO_STAGES, ("pipeline=2,fsdp=2,tensor=2", 1)],
        [("t5", FOUR_STAGES), ("nnx", TWO_STAGES)],
    ),
)
def test_losses_and_gradients_are_those_of_one_device(name, mesh, rounds):
    expected, loss = of_one_device(name)
    found, other = updated(name, mesh, 8, pipeline_rounds=rounds)
    assert other == pytest.approx(loss, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), found, expected)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        case(("decoder", "pipeline=2,sequence=2,tensor=2"), is_slow=True),
        case(("bounded mixture", "pipeline=2,expert=2,fsdp=2"), is_slow=True),
        case(("decoder", "pipeline=2,fsdp=2,tensor=2"), is_slow=False),
        case(("gpt2", "data=2,pipeline=4"), is_slow=False),
        case(("mixture", "data=2,pipeline=4"), is_slow=False),
        case(("mixture", "pipeline=2,expert=2,fsdp=2"), is_slow=False),
        case(("nnx", "pipeline=2,fsdp=2,tensor=2"), is_slow=False),
        case(("equinox", "data=2,pipeline=4"), is_slow=False),
    ],
)
def test_losses_and_gradients_by_1f1b_are_those_of_one_device(name, mesh):
    expected, loss = of_one_device(name)
    found, other = updated(name, mesh, 8, pipeline_schedule="1f1b")
    assert other == pytest.approx(loss, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), found, expected)


@pytest.mark.slow
def test_a_model_of_two_stacks_is_refused_by_1f1b():
    with pytest.raises(UsageError, match=r"calls mw\.nn\.layers 2 times"):
        updated("t5", "data=2,pipeline=4", 8, pipeline_schedule="1f1b")


RING = ("pipeline=2,sequence=4", 1)  # four devices do not share two heads


@pytest.mark.parametrize(
    ("mesh", "rounds", "is_packed"),
    pairs([RING, ("pipeline=2,sequence=2,tensor=2", 2)], [True, False], [(RING, True)]),
)
def test_rows_of_the_decoder_are_split_in_each_stage(mesh, rounds, is_packed):
    without = () if is_packed else ("segments",)
    expected, loss = of_one_device("decoder", without)
    found, other = updated("decoder", mesh, 8, without=without, pipeline_rounds=rounds)
    assert other == pytest.approx(loss, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6), found, expected)
