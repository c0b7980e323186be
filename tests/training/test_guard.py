import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import DivergedError, UsageError
from meshwright.training._guard import mean_plus_std

LAYOUT = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), (mw.parallel.match("w", "fsdp", "tensor"),))
X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
INNER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1), mw.training.keep_ema(0.9))


def loss(params, batch, key):
    return (batch["x"] @ params["w"]).mean() * batch["scale"].mean(), {"seen": batch["x"].mean()}


def batch(scale=1.0):
    return {"x": X, "scale": np.full(16, scale, np.float32)}


def started(tx, microbatches=2):
    state = mw.training.state_from({"w": np.ones((8, 4), np.float32)}, tx, 0, LAYOUT)
    return state, mw.make_step(loss, tx, LAYOUT, microbatches=microbatches)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 1e6])
def test_a_skipped_step_changes_nothing_but_the_counter(scale):
    state, step = started(mw.training.skip_exploding(INNER, 100.0))
    state, _ = step(state, batch())
    before = jax.device_get(state)
    state, metrics = step(state, batch(scale))
    jax.tree.map(np.testing.assert_array_equal, state.params, before.params)
    jax.tree.map(np.testing.assert_array_equal, state.opt_state[1:], before.opt_state[1:])
    assert (state.opt_state.skipped, metrics["skipped"].value, state.step) == (1, 1, 2)


def test_what_is_not_skipped_trains_as_without_the_guard_and_lies_beside_its_parameter():
    guarded, step = started(mw.training.skip_exploding(INNER, 100.0))
    plain, plain_step = started(INNER, 1)
    for scale in (1.0, np.nan, 2.0):
        guarded, metrics = step(guarded, batch(scale))
    for scale in (1.0, 2.0):
        plain, _ = plain_step(plain, batch(scale))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), guarded.params, plain.params)
    assert metrics["skipped"].value == 0
    assert guarded.opt_state.inner_state[1][0].mu["w"].sharding.spec == P("fsdp", "tensor")


def after(tx, norms):
    state = tx.init({"w": jnp.zeros(())})
    for norm in norms:
        _, state = tx.update({"w": jnp.float32(norm)}, state)
    return state


@given(st.lists(st.floats(0.5, 9.0), min_size=1, max_size=6), st.floats(0, 0.95))
def test_norms_are_averaged_as_numpy_would(values, decay):
    norms = after(mw.training.skip_exploding(optax.sgd(1.0), decay=decay), values).norms
    weights = [decay ** (len(values) - 1 - i) for i in range(len(values))]
    mean = np.average(values, weights=weights)
    std = np.average((np.asarray(values) - mean) ** 2, weights=weights) ** 0.5
    np.testing.assert_allclose((norms.mean, norms.std), (mean, std), rtol=1e-4, atol=0.01)


def test_an_adaptive_threshold_follows_the_norms_and_forgets_what_it_skipped():
    tx = mw.training.skip_exploding(optax.sgd(1.0), mean_plus_std(3, after=4))
    assert after(tx, [1.0, 50.0, 1.0]).skipped == 0
    assert after(tx, [1.0] * 8).skipped == 0
    steady = [1.0, 1.2, 0.9, 1.1]
    assert after(tx, [*steady, 1.2]).skipped == 0
    assert after(tx, [*steady, 2.0, np.nan, 2.0, 1.0]).skipped == 3


def test_reports_leave_out_what_a_skip_made_harmless():
    state, step = started(mw.training.skip_exploding(INNER))
    state, first = step(state, batch())
    state, second = step(state, batch(np.nan))
    report = mw.observe.merge([first, second])
    np.testing.assert_allclose(report["loss"], first["loss"].value)
    assert report["skipped"] == 0.5
    np.testing.assert_allclose(report["seen"], X.mean(), rtol=1e-5)


def test_reports_leave_out_histograms_of_steps_that_were_skipped_for_what_they_hold():
    counting = lambda params, batch, key: (
        loss(params, batch, key)[0],
        {"x": mw.observe.Histogram.of(batch["scale"])},
    )
    state, _ = started(tx := mw.training.skip_exploding(INNER))
    step, reports = mw.make_step(counting, tx, LAYOUT), []
    for scale in (2.0, np.nan):
        state, metrics = step(state, batch(scale))
        reports.append(metrics)
    merged = mw.observe.merge(reports)["x"]
    assert (merged.sum, merged.min, merged.num_not_finite) == (32, 2, 0)


@pytest.mark.parametrize("wrong", [{"threshold": 0.0}, {"decay": 1.0}])
def test_a_guard_that_makes_no_sense_is_told(wrong):
    with pytest.raises(UsageError, match="skip_exploding"):
        mw.training.skip_exploding(optax.sgd(1.0), **wrong)


@pytest.mark.parametrize(("stds", "options"), [(6, {"after": 0}), (0, {}), (-1, {})])
def test_a_threshold_that_would_skip_every_update_is_told(stds, options):
    with pytest.raises(UsageError, match="mean_plus_std"):
        mean_plus_std(stds, **options)


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_newest_checkpoint(loss):
    halt = mw.training._internal.halt_on_divergence(lambda: 40)
    halt(40, {"loss": 1.0})
    halt(41, {"held_out/loss": np.nan})
    with pytest.raises(DivergedError, match=r"at step 42 is (nan|inf)(.|\n)*newest checkpoint: step 40"):
        halt(42, {"loss": loss})


def test_a_run_may_skip_for_a_while_and_not_for_ever():
    halt = mw.training._internal.halt_on_divergence(lambda: None, patience=10)
    halt(10, {"loss": 1.0, "skipped": 0.5})
    halt(20, {"loss": np.nan, "skipped": 1.0})
    with pytest.raises(DivergedError, match="newest checkpoint: none"):
        halt(21, {"loss": np.nan, "skipped": 1.0})
    with pytest.raises(DivergedError):
        halt(20, {"loss": np.nan, "skipped": 0.5})


def test_a_run_that_skips_every_update_ends_though_its_loss_is_finite():
    halt = mw.training._internal.halt_on_divergence(lambda: 10, patience=10)
    halt(10, {"loss": 1.0, "skipped": 0.0})
    halt(20, {"loss": 1.0, "skipped": 1.0})
    halt(20, {"held_out/loss": 1.0})
    with pytest.raises(DivergedError, match="all updates since step 10 were skipped, up to step 21"):
        halt(21, {"loss": 1.0, "skipped": 1.0})


def test_a_guard_of_some_parameters_ends_the_run_at_the_step_that_spoils_the_others():
    """Its own half skips, and would make the loss weigh nothing."""
    tx = mw.training.by_path([("w", mw.training.skip_exploding(optax.sgd(0.1))), (".*", optax.sgd(0.1))])
    state = mw.training.state_from(
        {"w": np.ones((8, 4), np.float32), "u": np.ones(4, np.float32)}, tx, 0, LAYOUT
    )
    of = lambda params, batch, key: ((batch["x"] @ params["w"] + params["u"]) * batch["scale"].mean()).mean()
    step, halt = mw.make_step(of, tx, LAYOUT), mw.training._internal.halt_on_divergence(lambda: None)
    for i, scale in enumerate((1.0, 1.0, np.nan), start=1):
        state, metrics = step(state, batch(scale))
        report = mw.observe.merge([metrics])
        if i < 3:
            halt(i, report)
    with pytest.raises(DivergedError, match="reported at step 3 is nan"):
        halt(3, report)
