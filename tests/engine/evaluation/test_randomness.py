"""What a loss draws in evaluation: the same on every mesh."""

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.trainer.runs import EXAMPLES, apply, by_loss, fit, init, trainer
from meshwright.engine._evaluation._loss import AverageLoss


def first(num_examples):
    return {name: x[:num_examples] for name, x in EXAMPLES.items()}


def noisy(model, batch, key):
    """A loss with dropout and sampling, and a weighted metric of what it drew."""
    of_loss, of_metric = jax.random.split(key)
    kept = jax.random.bernoulli(of_loss, 0.5, batch["x"].shape)
    drawn = jax.random.uniform(of_metric, batch["y"].shape)
    return ((model(batch["x"] * kept) - batch["y"]) ** 2).mean(), {"drawn": mw.Mean.of(drawn, batch["y"] > 0)}


@pytest.mark.slow
@pytest.mark.parametrize("num_examples", [50, 48, 5], ids=["with a rest", "without", "less than a batch"])
@pytest.mark.parametrize(
    "mesh",
    [
        "fsdp=4,tensor=2",
        *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in ("data=2,tensor=4", "tensor=8")),
    ],
)
@pytest.mark.daily(1)
def test_what_a_loss_draws_in_evaluation_does_not_depend_on_the_mesh(mesh, num_examples):
    of_meshes = [
        trainer(mesh=each, loss=noisy).evaluate(mw.Evaluation("loss", first(num_examples), batch_size=16))
        for each in ("data=8", mesh)
    ]
    assert of_meshes[0] == pytest.approx(of_meshes[1], rel=1e-5)


@pytest.mark.slow
def test_nor_do_the_scores_of_a_fit():
    by = {"loss": noisy, "rules": (mw.parallel.match("w", "tensor"),)}
    found = [
        fit(trainer(mesh=mesh, **by), evaluations=by_loss(), max_steps=1)["eval/loss"]
        for mesh in ("data=8", "data=2,tensor=4")
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.daily(1)
def test_nor_on_how_many_devices_there_are(num_devices):
    def loss(params, batch, key):
        return (jax.random.normal(key, batch["y"].shape) * apply(params, batch["x"])).mean()

    def over(devices):
        layout = mw.Layout(mw.make_mesh("data=-1", devices))
        batches = mw.data.numbered_batches(EXAMPLES, 16, layout.batch_sharding)
        return AverageLoss(loss, layout, 0, None)(
            mw.training.init_state(init, optax.sgd(0.1), 0, layout), batches
        )

    assert over(jax.devices()[:num_devices]) == pytest.approx(over(jax.devices()), rel=1e-5)


@pytest.mark.parametrize(("draws", "sizes"), [(False, {16, 8}), (True, {16})])
def test_only_a_loss_that_draws_computes_the_rest_in_pieces_as_large_as_a_batch(draws, sizes):
    seen = set()

    def loss(model, batch, key):
        seen.add(len(batch["y"]))
        noise = jax.random.normal(key, batch["y"].shape)  # without `draws` nothing needs it
        return ((model(batch["x"]) - batch["y"] + (noise if draws else 0)) ** 2).mean()

    trainer(loss=loss).evaluate(mw.Evaluation("loss", EXAMPLES, batch_size=16))
    assert seen == sizes


def test_each_example_of_the_rest_draws_numbers_of_its_own():
    def loss(model, batch, key):
        return jax.random.uniform(key, batch["y"].shape).mean()

    made = trainer(loss=loss)
    score = lambda examples: made.evaluate(mw.Evaluation("loss", examples, batch_size=16))["loss"]
    found = [score(first(16 + rest)) for rest in range(1, 16)]
    assert len(set(np.round(found, 7))) == 15
