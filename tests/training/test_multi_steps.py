"""Gradients are accumulated once: by the step, or by `optax.MultiSteps`."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from engine.trainer.runs import fit, reports, trainer
from meshwright.errors import UsageError

LAYOUT = mw.Layout(mw.make_mesh("data=8"))


def every_other(tx):
    return optax.MultiSteps(tx, 2)


@pytest.mark.parametrize(
    "tx",
    [
        every_other(optax.adam(0.1)),
        optax.chain(optax.clip(1.0), every_other(optax.sgd(0.1)).gradient_transformation()),
        mw.training.by_path([(".*", every_other(optax.sgd(0.1)).gradient_transformation())]),
        mw.training.Trainable("w", every_other(optax.sgd(0.1))),
    ],
)
def test_both_are_refused_wherever_the_other_lies_in_the_optimizer(tx):
    state = mw.training.state_from({"w": np.ones(4, np.float32)}, tx, 0, LAYOUT)
    loss = lambda params, batch, key: (batch["x"] * params["w"].sum()).mean()
    with pytest.raises(UsageError, match=r"microbatches=4 .*(.|\n)*leave out optax.MultiSteps"):
        mw.make_step(loss, tx, LAYOUT, microbatches=4)(state, {"x": np.ones(32, np.float32)})


def test_experiments_and_trainers_refuse_both(tmp_path):
    tx = every_other(optax.sgd(0.1))
    with pytest.raises(UsageError, match=r"leave out optax.MultiSteps"):
        mw.run(experiment(tmp_path, optimizer=tx, microbatches=2))
    with pytest.raises(UsageError, match=r"microbatches(.|\n)*leave out optax.MultiSteps"):
        fit(trainer(optimizer=tx, microbatches=2))


@pytest.mark.slow
def test_the_learning_rate_reported_is_that_of_the_last_update(tmp_path):
    rate = lambda step: jnp.asarray([1.0, 0.5, 0.25])[step]
    made = trainer(tmp_path, optimizer=every_other(optax.sgd(rate)), lr_schedule=rate)
    fit(made, epochs=2, logging=mw.Logging(every=1))
    found = reports(tmp_path, "learning_rate")
    assert found == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 0.5), (5, 0.5), (6, 0.25)]
