import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import DivergedError


def test_training_ends_when_the_loss_is_no_longer_a_number():
    deployer = mw.Deployer(jax_seed=0, mesh="data=8", verbose=False)
    trainer = mw.Trainer(
        deployer,
        loss=lambda params, batch: (params["w"] * batch["x"]).mean() * np.nan,
        optimizer=optax.sgd(0.1),
        params={"w": np.ones((), np.float32)},
    )
    with pytest.raises(DivergedError, match="the loss reported at step 2 is nan"):
        trainer.fit({"x": np.ones((32, 4), np.float32)}, 1, n_epochs=2, log_every=2)
