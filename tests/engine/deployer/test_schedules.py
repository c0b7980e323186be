"""Learning rates, held against the formulas in redco's terms, but of the optimizer's step."""

import math

import jax
import numpy as np
import optax
import pytest

from meshwright.errors import UsageError

PEAK = 3e-3


def expected(kind, s, T, W, init, end):
    if s < W:
        return init + (PEAK - init) * s / W
    passed = min((s - W) / (T - W), 1)
    if kind == "linear":
        return PEAK + (end - PEAK) * passed
    alpha = end / PEAK
    return PEAK * ((1 - alpha) * (1 + math.cos(math.pi * passed)) / 2 + alpha)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize(("options", "W"), [({}, 0), ({"warmup_ratio": 0.15}, 4), ({"warmup_steps": 7}, 7)])
@pytest.mark.parametrize(("init", "end"), [(0.0, 0.0), (1e-3, 2e-4)])
def test_a_schedule_is_its_formula_at_every_step(make_deployer, kind, options, W, init, end):
    made = make_deployer(num_model_shards=2).get_lr_schedule_fn(
        train_size=163,
        per_device_batch_size=4,
        epochs=3,
        learning_rate=PEAK,
        schedule_type=kind,
        init_learning_rate=init,
        end_learning_rate=end,
        **options,
    )
    T = 3 * (163 // 16)
    rates = [float(made(s)) for s in range(T + 3)]
    np.testing.assert_allclose(
        rates, [expected(kind, s, T, W, init, end) for s in range(T + 3)], rtol=1e-4, atol=1e-8
    )


def rates_used(lr_schedule_fn, micro_steps, k):
    """The learning rates of the updates that `optax.MultiSteps` makes in so many micro-steps."""
    tx = optax.MultiSteps(optax.sgd(lr_schedule_fn), every_k_schedule=k)
    state, rates, update_of = tx.init(np.float32(0)), [], jax.jit(tx.update)
    for _ in range(micro_steps):
        update, state = update_of(np.float32(1), state, np.float32(0))
        rates.append(-float(update))
    return rates[k - 1 :: k]


def test_with_accumulation_the_optimizer_takes_the_whole_schedule(make_deployer):
    deployer = make_deployer()
    k = deployer.get_accumulate_grad_batches(batch_size=40, per_device_batch_size=1)
    options = {"train_size": 80, "per_device_batch_size": 1, "epochs": 2, "learning_rate": PEAK}
    made = deployer.get_lr_schedule_fn(**options, warmup_ratio=0.25, microbatches=k)
    T, W = 4, 1
    rates = rates_used(made, 2 * 10, k)
    np.testing.assert_allclose(rates, [expected("linear", s, T, W, 0, 0) for s in range(T)], rtol=1e-5)
    assert float(made(T)) == 0


def test_a_schedule_depends_on_nothing_that_was_asked_before(make_deployer):
    deployer = make_deployer()
    options = {"train_size": 80, "per_device_batch_size": 1, "epochs": 1, "learning_rate": 1.0}
    before = deployer.get_lr_schedule_fn(**options)
    deployer.get_accumulate_grad_batches(batch_size=40, per_device_batch_size=1)
    after = deployer.get_lr_schedule_fn(**options)
    assert [float(made(5)) for made in (before, after)] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_size": 7}, "3 epochs of 7 examples have no step: a batch needs 8"),
        ({"warmup_steps": 30}, "30 steps of warm-up leave no step for the decay"),
        ({"warmup_steps": 31, "schedule_type": "cosine"}, "31 steps of warm-up must be from 0 to 30"),
        ({"warmup_ratio": 1.0}, "leave no step for the decay"),
        ({"learning_rate": 0.0, "schedule_type": "cosine"}, "needs peak > 0"),
        ({"schedule_type": "linaer"}, "Did you mean 'linear'"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(make_deployer, options, message):
    usual = {"train_size": 80, "per_device_batch_size": 1, "epochs": 3, "learning_rate": PEAK}
    with pytest.raises(UsageError, match=message):
        make_deployer().get_lr_schedule_fn(**{**usual, **options})


def test_a_start_of_a_warmup_that_rounds_to_nothing_does_not_matter(make_deployer):
    made = make_deployer().get_lr_schedule_fn(80, 1, 1, PEAK, warmup_ratio=0.01, init_learning_rate=1e-5)
    assert float(made(0)) == pytest.approx(PEAK)
