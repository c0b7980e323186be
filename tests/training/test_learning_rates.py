"""The learning rate is reported of every run, and is the one that the update was made with."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from engine.trainer.runs import deployer, fit, reports, trainer

LAYOUT = mw.Layout(mw.make_mesh("data=8"))
WARMUP = mw.training.schedule("cosine", peak=0.5, max_steps=6, warmup_steps=2, end=0.1)
COSINE = optax.cosine_decay_schedule(0.3, 6)
NUM_STEPS = 6


def loss(params, batch, key):
    """A loss whose gradient is the batch's scale, so that SGD moves each parameter by its learning rate."""
    return batch["scale"].mean() * sum(x.sum() for x in jax.tree.leaves(params))


def batch(scale=1.0):
    return {"scale": np.full(16, scale, np.float32)}


def started(tx, microbatches=1, params=("w",)):
    state = mw.training.state_from({name: np.zeros(4, np.float32) for name in params}, tx, 0, LAYOUT)
    return state, mw.make_step(loss, tx, LAYOUT, microbatches=microbatches)


def trained(tx, batches=(batch(),) * NUM_STEPS, **options):
    """By how much each step moved each parameter, and what the step said of its learning rates."""
    state, step = started(tx, **options)
    moves, said = [], []
    for given in batches:
        before = jax.device_get(state.params)
        state, _ = step(state, given)
        moves.append({name: float((before[name] - x)[0]) for name, x in jax.device_get(state.params).items()})
        said.append(step.learning_rates())
    return moves, said


def like(value):
    return pytest.approx(value, rel=1e-5, abs=1e-6)


SGD = {
    "a number": optax.sgd(0.1),
    "a schedule of ours": optax.sgd(WARMUP),
    "a schedule of optax": optax.sgd(COSINE),
    "a chain": optax.chain(optax.clip(10.0), optax.sgd(COSINE), mw.training.keep_ema(0.9)),
    "a chain by hand": optax.chain(
        optax.scale_by_schedule(COSINE), optax.scale(-1.0), mw.training.keep_ema(0.9)
    ),
    "gradients that are scaled": optax.chain(optax.sgd(COSINE), optax.scale(0.5)),
    "injected": optax.inject_hyperparams(optax.sgd)(learning_rate=WARMUP),
    "guarded": mw.training.skip_exploding(optax.sgd(WARMUP)),
    "masked": optax.masked(optax.sgd(WARMUP), True),
    "if finite": optax.apply_if_finite(optax.sgd(WARMUP), 3),
    "only": mw.training.Trainable("w", optax.sgd(WARMUP)),
    "offloaded": mw.training.offload_opt_state(optax.sgd(WARMUP)),
    "adafactor's order": optax.chain(optax.scale_by_learning_rate(COSINE, flip_sign=False), optax.scale(-1)),
    "by path, one for all": mw.training.by_path([(".*", optax.sgd(COSINE))]),
}


@pytest.mark.parametrize("tx", SGD.values(), ids=SGD)
@pytest.mark.daily(6)
def test_it_is_what_a_step_of_sgd_moves_by(tx):
    moves, said = trained(tx)
    assert said == [{"learning_rate": like(moved["w"])} for moved in moves]


def test_accumulated_steps_count_once():
    moves, said = trained(optax.sgd(COSINE), microbatches=2)
    assert said == [{"learning_rate": like(moved["w"])} for moved in moves]


def test_between_the_updates_of_multi_steps_it_is_that_of_the_last_one():
    moves, said = trained(optax.MultiSteps(optax.sgd(COSINE), 2))
    made = [like(moved["w"]) for moved in moves if moved["w"]]
    assert [rates["learning_rate"] for rates in said] == [made[0], *np.repeat(made, 2)[:-1]]


def test_a_skipped_update_does_not_count():
    batches = [batch(scale) for scale in (1.0, np.nan, 1.0, np.nan, 1.0)]
    moves, said = trained(mw.training.skip_exploding(optax.sgd(COSINE)), batches)
    assert [moved["w"] > 0 for moved in moves] == [True, False, True, False, True]
    made = [like(moved["w"]) for moved in moves if moved["w"]]
    assert [rates["learning_rate"] for rates in said] == [made[0], made[0], made[1], made[1], made[2]]


BY_PATH = {
    "ours": mw.training.by_path(
        [("w", optax.sgd(COSINE)), (".*", mw.training.skip_exploding(optax.sgd(WARMUP)))]
    ),
    "optax's": optax.partition({"w": optax.sgd(COSINE), ".*": optax.sgd(WARMUP)}, {"w": "w", "b": ".*"}),
}


@pytest.mark.parametrize("tx", BY_PATH.values(), ids=BY_PATH)
def test_of_an_optimizer_by_path_there_is_one_for_each(tx):
    moves, said = trained(optax.chain(tx, mw.training.keep_ema(0.9)), params=("w", "b"))
    expected = [{"learning_rate/w": like(one["w"]), "learning_rate/.*": like(one["b"])} for one in moves]
    assert said == expected


def test_of_multipliers_by_path_there_is_one_for_each_and_one_for_the_others():
    moves, said = trained(
        optax.chain(optax.sgd(COSINE), mw.training.scale_by_path([("b", 0.1)])), params=("w", "b")
    )
    assert said == [{"learning_rate": like(one["w"]), "learning_rate/b": like(one["b"])} for one in moves]


def test_what_is_frozen_has_none():
    tx = mw.training.by_path([("w", optax.sgd(0.1)), (".*", optax.set_to_zero())])
    assert trained(tx, params=("w", "b"))[1][-1] == {"learning_rate": like(0.1)}


RATED = [
    "adabelief",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamaxw",
    "adamw",
    "adan",
    "amsgrad",
    "lamb",
    "lars",
    "lion",
    "nadam",
    "nadamw",
    "novograd",
    "radam",
    "rmsprop",
    "sgd",
    "sign_sgd",
    "yogi",
]


@pytest.mark.parametrize("rate", [3e-3, COSINE], ids=["a number", "a schedule"])
@pytest.mark.parametrize("name", RATED)
def test_the_optimizers_of_optax_show_theirs(name, rate):
    tx = getattr(optax, name)(learning_rate=rate)
    found = mw.training.learning_rates(tx)(tx.init({"w": jnp.ones((4, 4))}))
    assert found == {"learning_rate": like(float(rate(0)) if callable(rate) else rate)}


def opaque():
    return optax.stateless(lambda updates, params: jax.tree.map(lambda x: 0.3 * x, updates))


UNKNOWN = {
    "steps that adapt": optax.rprop(1e-3),
    "a function of one's own": optax.chain(optax.scale_by_adam(), opaque(), optax.scale(-1)),
    "a factor before Adam's memory": optax.chain(optax.scale(0.1), optax.scale_by_adam(), optax.scale(-1e-3)),
    "nothing that goes downhill": optax.chain(optax.scale_by_adam(), optax.scale(0.1)),
}


@pytest.mark.parametrize("tx", UNKNOWN.values(), ids=UNKNOWN)
def test_none_is_invented(tx):
    assert mw.training.learning_rates(tx)(tx.init({"w": jnp.ones(4)})) == {}


def test_gradients_that_are_scaled_for_an_optimizer_do_not_change_its_rate():
    tx = optax.chain(optax.clip(1.0), optax.scale(1 / 128), optax.adam(1e-3))
    assert mw.training.learning_rates(tx)(tx.init({"w": jnp.ones(4)})) == {"learning_rate": like(1e-3)}


def expected(schedule, steps):
    return [(step, like(float(schedule(step - 1)))) for step in range(1, steps + 1)]


def test_an_experiment_reports_it(tmp_path):
    mw.run(experiment(tmp_path, optimizer=optax.adamw(WARMUP), logging=mw.Logging(every=1), max_steps=5))
    assert reports(tmp_path, "learning_rate") == expected(WARMUP, 5)


def test_a_run_that_goes_on_reports_the_one_of_its_step(tmp_path):
    for steps in (3, 6):
        mw.run(
            experiment(tmp_path, optimizer=optax.adamw(COSINE), logging=mw.Logging(every=1), max_steps=steps)
        )
    assert reports(tmp_path, "learning_rate") == expected(COSINE, 6)


@pytest.mark.slow
def test_a_trainer_reports_it_without_being_told(tmp_path):
    fit(trainer(tmp_path, optimizer=optax.adam(COSINE), microbatches=2), logging=mw.Logging(every=1))
    assert reports(tmp_path, "learning_rate") == expected(COSINE, 6)


def test_of_what_a_trainer_is_told_and_the_optimizer_shows_the_latter_is_reported(tmp_path):
    made = trainer(tmp_path, optimizer=mw.training.skip_exploding(optax.sgd(COSINE)), lr_schedule=WARMUP)
    fit(made, logging=mw.Logging(every=1))
    assert reports(tmp_path, "learning_rate") == expected(COSINE, 6)


def test_of_a_step_of_ones_own_it_is_the_one_that_the_trainer_is_told(tmp_path):
    def train_step(state, batch):
        return state.__class__(state.step + 1, *[getattr(state, x) for x in REST]), {"loss": 0.0}

    fit(trainer(tmp_path, loss=None, train_step=train_step, lr_schedule=WARMUP), logging=mw.Logging(every=1))
    fit(trainer(given=deployer(), loss=None, train_step=train_step), logging=mw.Logging(every=1))
    assert reports(tmp_path, "learning_rate") == expected(WARMUP, 6)


REST = ("params", "opt_state", "seed", "model_state")


def test_a_loop_of_ones_own_reports_it():
    state, step = started(optax.sgd(COSINE))
    found = []
    log = mw.observe.logger(
        lambda at, values: found.append((at, values["learning_rate"])),
        mw.engine.every(2),
        also=step.learning_rates,
    )
    mw.fit(step, state, iter([batch()] * 4), max_steps=4, log=log)
    assert found == expected(COSINE, 4)[1::2]


def test_a_metric_of_that_name_stands(tmp_path):
    def told(params, batch, key):
        return (batch["x"] @ params["w"]).mean(), {"learning_rate": 7.0}

    mw.run(experiment(tmp_path, loss=told, logging=mw.Logging(every=5)))
    assert {value for _, value in reports(tmp_path, "learning_rate")} == {7.0}


def test_a_step_keeps_no_state_alive():
    state, step = started(optax.sgd(0.1))
    state, _ = step(state, batch())
    assert step.learning_rates()
    del state
    assert step.learning_rates() == {}
