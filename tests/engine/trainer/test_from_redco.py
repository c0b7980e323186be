"""A run that redco began and we continue: as if redco had."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from checkpoints.formats.readers import redco

NUM_EXAMPLES, BATCH, EPOCHS = 40, 8, 2
STEPS = NUM_EXAMPLES // BATCH
RNG = np.random.default_rng(0)
X = RNG.standard_normal((NUM_EXAMPLES, 4), np.float32)
Y = X @ RNG.standard_normal(4, np.float32)
OPTIMIZER = optax.adamw(optax.linear_schedule(0.3, 0.0, 2 * EPOCHS * STEPS))


def loss(params, batch):
    return ((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2).mean()


class Redco:
    """What redco's trainer does, in a plain loop: an order from a key each epoch, then a key each step."""

    def __init__(self):
        self.rng = jax.random.PRNGKey(42)
        self.params = {"w": jnp.zeros(4), "b": jnp.zeros(())}
        self.opt_state = OPTIMIZER.init(self.params)
        self.losses = []

    def key(self):
        self.rng, key = jax.random.split(self.rng)
        return key

    def epoch(self):
        for indices in jax.random.permutation(self.key(), NUM_EXAMPLES).reshape(STEPS, BATCH):
            self.key()
            value, grads = jax.value_and_grad(loss)(self.params, {"x": X[indices], "y": Y[indices]})
            updates, self.opt_state = OPTIMIZER.update(grads, self.opt_state, self.params)
            self.params = optax.apply_updates(self.params, updates)
            self.losses.append(float(value))


@pytest.fixture(scope="module")
def redco_run(tmp_path_factory):
    """A work directory as redco left it after half of the epochs, and the losses of all."""
    workdir, run = tmp_path_factory.mktemp("redco"), Redco()
    for _ in range(EPOCHS):
        run.epoch()
    rng = jax.random.key_data(run.rng).tolist()
    redco.write(
        workdir, "last", run.params, run.opt_state, step=EPOCHS * STEPS, epoch_idx=EPOCHS - 1, rng=rng
    )
    for _ in range(EPOCHS):
        run.epoch()
    return workdir, run


def order_of(deployer):
    """Return the order in which redco reads the examples of the next epoch."""
    order = jax.random.permutation(deployer.gen_rng(), NUM_EXAMPLES).tolist()
    for _ in range(STEPS):
        deployer.gen_model_step_rng()
    return order


@pytest.mark.slow
def test_step_epoch_optimizer_and_randomness_are_taken_over(redco_run):
    workdir, run = redco_run
    deployer = mw.Deployer(0, verbose=False, workdir=workdir)
    loaded, info = deployer.load_last_ckpt(optimizer=OPTIMIZER)

    orders = {epoch: order_of(deployer) for epoch in range(info["epoch_idx"] + 1, 2 * EPOCHS)}

    def shuffled(epoch_idx):
        return [{"x": X[i], "y": Y[i]} for i in orders.get(epoch_idx, range(NUM_EXAMPLES))]

    trainer = mw.Trainer(deployer, loss=loss, optimizer=OPTIMIZER, **loaded, last_ckpt_info=info)
    trainer.fit(shuffled, 1, 2 * EPOCHS, logging=mw.Logging(every=1), shuffle=False)
    reported = [
        report["loss"] for report in mw.observe.read_jsonl(workdir / "metrics.jsonl") if "loss" in report
    ]
    np.testing.assert_allclose(reported, run.losses[EPOCHS * STEPS :], rtol=1e-5)
    assert trainer.step == 2 * EPOCHS * STEPS
    np.testing.assert_allclose(trainer.params["w"], run.params["w"], rtol=1e-5)
