"""Complex parameters go downhill, in the real part as in the imaginary one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import UsageError

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(16, 3)) + 1j * RNG.normal(size=(16, 3))).astype(np.complex64)
Y = X @ np.array([1 + 2j, -3j, 0.5])
BATCH = {"x": X, "y": Y.astype(np.complex64)}
START = np.array([1j, 1, -1 - 1j], np.complex64)
LAYOUT = mw.Layout(mw.make_mesh("data=4", jax.devices()[:4]))
STEPS = 5


def loss(params, batch, key):
    return (jnp.abs(batch["x"] @ params["w"] - batch["y"]) ** 2).mean()


def gradient(w):
    """Of the loss: what it rises by with the real part, and 1j times what it rises by with the imaginary."""
    return 2 * X.conj().T @ (X @ w - Y) / len(X)


def sgd(rate):
    w = START.astype(np.complex128)
    for _ in range(STEPS):
        w = w - rate * gradient(w)
    return w


def adam(rate):
    """Both parts of a number share a second moment, of its absolute value."""
    w, m, v = START.astype(np.complex128), 0, 0
    for t in range(1, STEPS + 1):
        g = gradient(w)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * abs(g) ** 2
        w = w - rate * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def by_step(tx, pieces):
    state = mw.training.state_from({"w": START}, tx, 0, LAYOUT)
    step = mw.make_step(loss, tx, LAYOUT, microbatches=pieces)
    for _ in range(STEPS):
        state, _ = step(state, BATCH)
    return state.params["w"]


def by_run(tx, pieces, folder):
    given = mw.Input(BATCH, batch_size=16, shuffle=False)
    described = {
        "model": lambda key: {"w": jnp.asarray(START)},
        "loss": loss,
        "optimizer": tx,
        "input": given,
    }
    run = mw.Experiment(workdir=str(folder), max_steps=STEPS, microbatches=pieces, **described)
    return mw.run(run).state.params["w"]


def by_trainer(tx, pieces, folder):
    deployer = mw.Deployer(0, verbose=False)
    keyless = lambda params, batch: loss(params, batch, None)
    trainer = mw.Trainer(deployer, loss=keyless, optimizer=tx, params={"w": START}, microbatches=pieces)
    trainer.fit(BATCH, batch_size=16, max_steps=STEPS)
    return trainer.params["w"]


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize(("tx", "expected"), [(optax.sgd, sgd), (optax.adam, adam)])
def test_a_step_moves_both_parts_as_numpy_would(tx, expected, pieces):
    np.testing.assert_allclose(by_step(tx(0.1), pieces), expected(0.1), rtol=1e-4)


@pytest.mark.parametrize("train", [by_run, by_trainer])
def test_so_do_experiments_and_trainers(train, tmp_path):
    np.testing.assert_allclose(train(optax.sgd(0.1), 2, tmp_path), sgd(0.1), rtol=1e-4)


@pytest.mark.parametrize(
    "tx",
    [
        mw.training.by_path([(".*", optax.sgd(0.1))]),
        mw.training.skip_exploding(optax.sgd(0.1), mw.training.mean_plus_std(6)),
        mw.training.Trainable("w", optax.chain(optax.sgd(0.1), mw.training.keep_ema(0.9))),
        optax.chain(optax.sgd(0.2), mw.training.scale_by_path([("w", 0.5)])),
    ],
)
def test_what_goes_around_an_optimizer_keeps_both_parts(tx):
    np.testing.assert_allclose(by_step(tx, 1), sgd(0.1), rtol=1e-4)


def test_averages_decay_and_norms_are_of_both_parts():
    decayed = mw.training.decay_by_path([("w", 0.5)])
    tx = optax.chain(decayed, optax.sgd(0.1), mw.training.keep_ema(0.5, bias_correction=False))
    state = mw.training.state_from({"w": START}, tx, 0, LAYOUT)
    step = mw.make_step(loss, tx, LAYOUT, norms=".*", compute_dtype="bfloat16")
    state, metrics = step(state, BATCH)
    g = gradient(START)
    moved = START - 0.1 * (g + 0.5 * START)
    np.testing.assert_allclose(state.params["w"], moved, rtol=1e-5)
    np.testing.assert_allclose(mw.training.ema_params(state)["w"], (START + moved) / 2, rtol=1e-5)
    found = [metrics[name].value for name in ("grad_norm", "grad_norm/w", "param_norm/w")]
    np.testing.assert_allclose(found, [np.linalg.norm(g)] * 2 + [np.linalg.norm(START)], rtol=1e-5)


def test_noise_is_on_both_parts_and_has_the_deviation_asked_for():
    params, like = {"w": np.full(4096, 3 + 4j, np.complex64)}, (lambda params, batch, key: params["w"])
    for std in (0.5, mw.training._internal.relative_std(0.1)):
        noise = np.asarray(
            mw.training.with_parameter_noise(like, [(".*", std)])(params, BATCH, jax.random.key(0))
            - params["w"]
        )
        np.testing.assert_allclose(noise.std(), 0.5, rtol=0.05)
        np.testing.assert_allclose(noise.real.std(), noise.imag.std(), rtol=0.05)


def test_an_optimizer_that_would_drop_the_imaginary_part_is_told():
    tx = optax.adam(0.1, mu_dtype="float32")
    with pytest.raises(UsageError, match="the optimizer casts complex numbers to real ones"):
        by_step(tx, 1)
