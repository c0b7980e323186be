"""redco's own run: replayed by our trainer, and gone on with from the checkpoint that redco left.

What its data and first parameters were is not recorded. They were found: with these the recorded predictions
are made by the recorded parameters, and the recorded losses by the first ones.
"""

import itertools
import json
import shutil

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from checkpoints.formats.readers.real import FIXTURES
from meshwright.base import _tree as tree

WORKDIR = "redco/ckpt_dp_adamw_orbax0.12"
SIZES, SEED = (64, 32, 16, 10), 42
PER_DEVICE, BATCH, STEPS, EPOCHS = 8, 64, 3, 2
pytestmark = pytest.mark.others


def make(num_examples, seed):
    image = np.random.RandomState(seed).randn(num_examples, SIZES[0]).astype(np.float32)
    label = (image @ np.random.RandomState(0).randn(SIZES[0], SIZES[-1])).argmax(-1)
    return [{"image": x, "label": y} for x, y in zip(image, label, strict=True)]


TRAIN, TEST = make(200, 1), make(101, 2)


def first_params():
    normal = np.random.RandomState(7).randn
    return {
        f"Dense_{layer}": {
            "kernel": (normal(fan_in, fan_out) / np.sqrt(fan_in)).astype(np.float32),
            "bias": np.zeros(fan_out, np.float32),
        }
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(SIZES))
    }


def logits(params, batch):
    x = batch["image"]
    for layer in range(3):
        dense = params[f"Dense_{layer}"]
        x = (x if layer == 0 else jax.nn.relu(x)) @ dense["kernel"] + dense["bias"]
    return x


def loss(params, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, batch), batch["label"])
    return losses.mean()


def rate(deployer):
    """Return redco's schedule of its two epochs, and a rate of its own for all that comes after."""
    schedule = deployer.get_lr_schedule_fn(
        train_size=len(TRAIN),
        per_device_batch_size=PER_DEVICE,
        epochs=EPOCHS,
        learning_rate=1e-2,
        schedule_type="linear",
        warmup_ratio=0.2,
    )
    return optax.join_schedules([schedule, optax.constant_schedule(3e-3)], [EPOCHS * STEPS])


def order_of(deployer):
    """Return what redco reads in the next epoch, and draw the keys that it draws: one for each batch."""
    order = jax.random.permutation(deployer.gen_rng(), len(TRAIN))[: STEPS * BATCH].tolist()
    for _ in range(STEPS + 1 + 2):  # a batch of evaluation, and two of predictions
        deployer.gen_model_step_rng()
    return order


def trained(deployer, orders, epochs, **begun):
    """Train up to an epoch with our trainer, in these orders; return it, and its report of every step."""
    trainer = mw.Trainer(
        deployer, loss=loss, optimizer=optax.adamw(rate(deployer)), lr_schedule=rate(deployer), **begun
    )
    examples = lambda epoch_idx: [TRAIN[i] for i in orders.get(epoch_idx, range(BATCH))]
    trainer.fit(examples, PER_DEVICE, epochs, logging=mw.Logging(every=1), shuffle=False)
    reports = mw.observe.read_jsonl(deployer.workdir / "metrics.jsonl")
    return trainer, [report for report in reports if "loss" in report]


@pytest.fixture(scope="module")
def trace():
    return json.loads((FIXTURES / WORKDIR / "trace.json").read_text())


@pytest.fixture(scope="module")
def replayed(trace, tmp_path_factory):
    """What our trainer makes of redco's run from its beginning, and the reports of its steps."""
    deployer = mw.Deployer(SEED, verbose=False, workdir=tmp_path_factory.mktemp("replayed"))
    orders = dict(enumerate(trace["shuffle_orders_per_epoch"]))
    return trained(deployer, orders, EPOCHS, params=first_params())


@pytest.fixture(scope="module")
def undisturbed():
    """A plain loop of redco's epochs and as many more: its losses, state and next key."""
    deployer = mw.Deployer(SEED, verbose=False)
    optimizer, params = optax.adamw(rate(deployer)), first_params()
    opt_state, losses = optimizer.init(params), []
    for _ in range(2 * EPOCHS):
        for indices in np.reshape(order_of(deployer), (STEPS, BATCH)):
            batch = jax.tree.map(lambda *x: np.stack(x), *[TRAIN[i] for i in indices])
            value, grads = jax.value_and_grad(loss)(params, batch)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            losses.append(float(value))
    return losses, {"params": params, "opt_state": opt_state}, deployer.gen_rng()


@pytest.fixture
def saved(tmp_path):
    """What a deployer loads of the work directory that redco left, and the deployer."""
    workdir = shutil.copytree(FIXTURES / WORKDIR, tmp_path / "run")
    deployer = mw.Deployer(0, verbose=False, workdir=workdir)
    loaded, info = deployer.load_last_ckpt(optimizer=optax.adamw(rate(deployer)))
    return loaded, info, deployer


def assert_close(found, expected):
    found, expected = tree.named_leaves(found), tree.named_leaves(expected)
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_loss_the_gradient_and_the_rate_of_every_step_are_redco_s(replayed, trace):
    _, reports = replayed
    steps = [step for step in trace["steps"] if "grad_norm" in step]
    for name, theirs in {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm"}.items():
        found = [report[name] for report in reports]
        np.testing.assert_allclose(found, [step[theirs] for step in steps], rtol=1e-6, err_msg=name)


def test_parameters_and_optimizer_state_end_as_redco_s(replayed, saved):
    trainer, _ = replayed
    assert_close({"params": trainer.params, "opt_state": trainer.state.opt_state}, saved[0])


def test_the_checkpoint_predicts_and_scores_what_redco_predicted_and_scored(saved, trace):
    deployer, params = mw.Deployer(0, verbose=False), saved[0]["params"]
    predictor = mw.Predictor(deployer, predict=lambda params, batch: logits(params, batch).argmax(-1))
    predicted = predictor.predict(TEST, PER_DEVICE, params)
    first = jax.tree.map(lambda *x: np.stack(x), *TEST[:BATCH])  # redco's loss leaves out the last batch
    assert [int(label) for label in predicted] == trace["preds"]
    np.testing.assert_allclose(loss(params, first), trace["eval_results"][-1]["loss"], rtol=1e-6)


def test_step_epoch_optimizer_state_and_randomness_are_gone_on_with(saved, undisturbed, trace):
    loaded, info, deployer = saved
    orders = {epoch_idx: order_of(deployer) for epoch_idx in range(info["epoch_idx"] + 1, 2 * EPOCHS)}
    trainer, reports = trained(deployer, orders, 2 * EPOCHS, **loaded, last_ckpt_info=info)

    losses, state, key = undisturbed
    redco_s = [step["loss"] for step in trace["steps"] if "grad_norm" in step]
    np.testing.assert_allclose(losses[: EPOCHS * STEPS], redco_s, rtol=1e-6)
    assert [report["step"] for report in reports] == list(range(EPOCHS * STEPS + 1, 2 * EPOCHS * STEPS + 1))
    np.testing.assert_allclose([report["loss"] for report in reports], losses[EPOCHS * STEPS :], rtol=1e-5)
    assert_close({"params": trainer.params, "opt_state": trainer.state.opt_state}, state)
    assert jax.random.key_data(deployer.gen_rng()).tolist() == jax.random.key_data(key).tolist()
