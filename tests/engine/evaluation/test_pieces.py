import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.engine._evaluation._loss import pieces


@given(st.integers(1, 300), st.sampled_from([1, 2, 3, 6, 8, 12, 64]))
def test_pieces_divide_and_weigh_every_row_once(num_examples, ways):
    weights = np.zeros(num_examples)
    for rows, repeats in pieces(num_examples, ways):
        assert len(rows) % ways == 0
        np.add.at(weights, rows, 1 / repeats)
    np.testing.assert_allclose(weights, 1)


@given(st.integers(1, 300), st.sampled_from([1, 2, 3, 6, 8, 12, 64]))
def test_pieces_are_of_two_sizes_and_few(num_examples, ways):
    sizes = [len(rows) for rows, _ in pieces(num_examples, ways)]
    assert len(set(sizes)) <= 2
    assert len(sizes) <= 1 + np.ceil(np.log2(ways))


RNG = np.random.default_rng(0)
PAIRS = {name: RNG.normal(size=(28, 4)).astype(np.float32) for name in ("one", "other")}


def contrastive(params, batch):
    """A loss in which each row has all others of the batch as negatives."""
    logits = batch["one"] @ params["w"] @ batch["other"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(len(logits))).mean()


@pytest.mark.parametrize("mesh", ["data=8", "data=2,fsdp=4"])
def test_rows_that_meet_in_the_loss_are_computed_together_on_a_mesh_that_does_not_divide_them(mesh):
    params = {"w": jnp.eye(4)}
    parts = [jax.tree.map(lambda x, i=i: x[i : i + 16], PAIRS) for i in (0, 16)]
    of_parts = [float(contrastive(params, part)) * len(part["one"]) / 28 for part in parts]
    deployer = mw.Deployer(seed=0, verbose=False, mesh=mesh)
    trainer = mw.Trainer(deployer, params=params, loss=contrastive, optimizer=optax.sgd(0.1))
    loss = trainer.evaluate(mw.Evaluation("loss", PAIRS, batch_size=16))["loss"]
    assert loss == pytest.approx(sum(of_parts), rel=1e-5)


def test_on_explicit_axes_the_last_examples_are_split_as_those_before_them():
    loss = lambda params, batch: ((batch["one"] @ params["w"]) ** 2).mean()
    deployer = mw.Deployer(seed=0, verbose=False, mesh="explicit: data=8")
    trainer = mw.Trainer(deployer, params={"w": jnp.eye(4)}, loss=loss, optimizer=optax.sgd(0.1))
    loss = trainer.evaluate(mw.Evaluation("loss", PAIRS, batch_size=16))["loss"]
    assert loss == pytest.approx((PAIRS["one"] ** 2).mean(), rel=1e-5)
