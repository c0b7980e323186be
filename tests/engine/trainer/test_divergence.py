"""`fit` saves no state that is not finite."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.trainer.runs import X, fit, saved, trainer
from meshwright.errors import DivergedError


def bad(step):
    """Examples whose batch of 8 at this step makes a gradient NaN of a loss that is finite: sqrt at 0."""
    return {"x": np.where(np.arange(50)[:, None] // 8 == step - 1, 0, X)}


def loss(params, batch):
    return jnp.sqrt((batch["x"] ** 2).mean() * (params["w"] ** 2).sum() + 0 * params["b"])


def fitted(workdir, examples, **options):
    made = trainer(workdir, loss=loss, optimizer=optax.sgd(0.01))
    fit(
        made,
        examples,
        **{"batch_size": 8, "epochs": 1, "shuffle": False, "logging": mw.Logging(every=1)} | options,
    )
    return made


def test_a_step_that_is_not_finite_is_not_saved_and_mended_data_continue(tmp_path):
    with pytest.raises(DivergedError, match=r"after step 4 is not finite(.|\n)*newest checkpoint: step 2"):
        fitted(tmp_path, bad(4), save=mw.Save(when=2, keep=1))
    assert saved(tmp_path) == [2]
    assert fitted(tmp_path, {"x": X}, save=mw.Save(when=2)).step == 6


def test_nor_is_the_last_one(tmp_path):
    with pytest.raises(DivergedError, match=r"after step 6 is not finite(.|\n)*newest checkpoint: step 0"):
        fitted(tmp_path, bad(6))
    assert saved(tmp_path) == [0]


def test_parameters_that_are_not_finite_are_told_before_the_first_step(tmp_path):
    made = trainer(tmp_path, params={"w": np.full(4, np.nan, np.float32), "b": np.float32(0)})
    with pytest.raises(DivergedError, match="after step 0 is not finite: params/w;"):
        fit(made)
    assert saved(tmp_path) == []
