import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import UsageError
from meshwright.training._schedules import schedule

PEAK, END = 3e-4, 2e-5


def rates(made, steps):
    return np.broadcast_to(np.asarray(made(jnp.arange(steps)), np.float64), steps)


def warmed_up(after, init, T, W):
    """The warm-up, and then `after(s)`, at steps 0 to T + 5, in float64."""
    return [init + (PEAK - init) * s / W if s < W else after(s) for s in range(T + 6)]


@pytest.mark.parametrize(("T", "W"), [(50, 0), (50, 7), (50, 49), (1, 0)])
def test_linear_falls_in_a_straight_line_and_stays_at_its_end(T, W):
    init = 1e-5 if W else None
    made = schedule("linear", peak=PEAK, max_steps=T, warmup_steps=W, init=init, end=END)
    expected = warmed_up(lambda s: PEAK + (END - PEAK) * min((s - W) / (T - W), 1), init, T, W)
    np.testing.assert_allclose(rates(made, T + 6), expected, rtol=1e-5, atol=1e-6 * PEAK)


@pytest.mark.parametrize(("T", "W"), [(50, 0), (50, 7), (50, 49), (1, 0)])
def test_cosine_falls_as_half_a_wave(T, W):
    made = schedule("cosine", peak=PEAK, max_steps=T, warmup_steps=W, end=END)
    alpha = END / PEAK

    def after(s):
        half_wave = (1 + math.cos(math.pi * min(s - W, T - W) / (T - W))) / 2
        return PEAK * ((1 - alpha) * half_wave + alpha)

    np.testing.assert_allclose(rates(made, T + 6), warmed_up(after, 0, T, W), rtol=1e-5, atol=1e-6 * PEAK)


def test_constant_and_inverse_sqrt_go_on_without_an_end():
    constant = schedule("constant", peak=PEAK, max_steps=20, warmup_steps=4)
    np.testing.assert_allclose(rates(constant, 26), warmed_up(lambda s: PEAK, 0, 20, 4), rtol=1e-5)
    falling = schedule("inverse_sqrt", peak=PEAK, max_steps=20, warmup_steps=4)
    expected = warmed_up(lambda s: PEAK * math.sqrt(4 / s), 0, 20, 4)
    np.testing.assert_allclose(rates(falling, 26), expected, rtol=1e-5)


def test_warmup_stable_decay_falls_in_its_last_steps_only():
    T, W, D = 40, 5, 10
    made = schedule("warmup_stable_decay", peak=PEAK, max_steps=T, warmup_steps=W, decay_steps=D, end=END)

    def after(s):
        return PEAK if s < T - D else PEAK + (END - PEAK) * min((s - T + D) / D, 1)

    np.testing.assert_allclose(rates(made, T + 6), warmed_up(after, 0, T, W), rtol=1e-5)


def test_a_ratio_of_warmup_is_rounded_down():
    made = schedule("linear", peak=1.0, max_steps=25, warmup_ratio=0.1)
    assert [float(made(s)) for s in range(4)] == pytest.approx([0, 1 / 2, 1, 22 / 23])


@given(
    kind=st.sampled_from(["linear", "cosine", "constant", "inverse_sqrt", "warmup_stable_decay"]),
    W=st.integers(1, 30),
    rest=st.integers(1, 30),
    init=st.floats(0, 1),
    end=st.floats(0, 1),
)
def test_any_shape_rises_to_its_peak_and_never_rises_again(kind, W, rest, init, end):
    own = {"linear": {"end": end}, "cosine": {"end": end}, "warmup_stable_decay": {"decay_steps": rest}}
    made = schedule(kind, peak=1.0, max_steps=W + rest, warmup_steps=W, init=init, **own.get(kind, {}))
    values = rates(made, 64)
    assert values[0] == pytest.approx(init, abs=1e-6)
    assert values[W] == pytest.approx(1.0)
    assert (np.diff(values[: W + 1]) >= -1e-6).all()
    assert (np.diff(values[W:]) <= 1e-6).all()


def test_a_compiled_schedule_gives_what_a_plain_call_gives():
    made = schedule("cosine", peak=1.0, max_steps=9, warmup_steps=3)
    assert float(jax.jit(made)(jnp.int32(5))) == pytest.approx(float(made(5)))


def test_any_schedule_of_optax_passes_through():
    own = optax.polynomial_schedule(1.0, 0.1, 2, 10)
    assert schedule(own) is own


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "cosin"}, "Did you mean 'cosine'"),
        ({"peak": 0.0}, "needs peak > 0"),
        ({"max_steps": None}, "max_steps=None"),
        ({"warmup_steps": 2, "warmup_ratio": 0.1}, "not both"),
        ({"warmup_steps": 10}, "leave no step for the decay"),
        ({"kind": "cosine", "warmup_ratio": 1.0}, "leave no step for the decay"),
        ({"kind": "constant", "warmup_steps": 11}, "must be from 0 to 10"),
        ({"warmup_steps": -1}, "must be from 0 to 10"),
        ({"kind": "constant", "end": 0.1}, "has no end"),
        ({"decay_steps": 3}, "choose warmup_stable_decay"),
        ({"kind": "inverse_sqrt"}, "needs a warm-up"),
        ({"kind": "warmup_stable_decay"}, "decay_steps must be from 1 to 10"),
        ({"init": 0.1}, "there is no warm-up"),
    ],
)
def test_what_makes_no_schedule_is_said(settings, message):
    with pytest.raises(UsageError, match=message):
        schedule(**{"kind": "linear", "peak": 1.0, "max_steps": 10} | settings)
