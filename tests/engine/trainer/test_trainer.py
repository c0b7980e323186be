"""What `fit` computes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.trainer.runs import (
    EXAMPLES,
    X,
    apply,
    arrays,
    by_loss,
    deployer,
    exact_loss,
    fit,
    reports,
    trainer,
)
from meshwright.errors import DivergedError, MeshwrightError


def test_evaluation_counts_every_example_once():
    made = trainer()
    scores = fit(made, evaluations=by_loss())
    assert scores == {"eval/loss": pytest.approx(exact_loss(made.params), rel=1e-6)}


def test_evaluation_does_not_change_training():
    evaluated, alone = trainer(), trainer()
    fit(evaluated, evaluations=by_loss(when=1))
    fit(alone)
    assert arrays(evaluated) == arrays(alone)


def test_training_depends_on_the_seed_and_not_on_what_was_drawn_before():
    drawn = deployer()
    drawn.gen_rng()
    first, second, other = trainer(given=drawn), trainer(), trainer(given=mw.Deployer(1, verbose=False))
    for made in (first, second, other):
        fit(made)
    assert arrays(first) == arrays(second) != arrays(other)


def test_accumulation_makes_one_update_of_several_pieces():
    def quiet(model, batch):
        return ((model(batch["x"]) - batch["y"]) ** 2).mean()

    whole, pieces = trainer(loss=quiet), trainer(loss=quiet, microbatches=2)
    fit(whole, batch_size=32)
    fit(pieces, batch_size=None, per_device_batch_size=2)
    assert whole.step == pieces.step == 2
    np.testing.assert_allclose(pieces.params["w"], whole.params["w"], rtol=1e-5)


def test_a_batch_is_computed_in_as_many_pieces_as_are_accumulated():
    def counting(params, batch, model_state):
        return (apply(params, batch["x"]) ** 2).mean(), {}, {"pieces": model_state["pieces"] + 1}

    given = {"params": {"w": np.ones(4, np.float32), "b": np.float32(0)}, "model_state": {"pieces": 0}}
    made = trainer(model=None, loss=counting, microbatches=2, **given)
    fit(made, epochs=1)
    assert (made.step, made.model_state["pieces"]) == (3, 2 * 3)


def test_a_loss_computes_in_the_dtype_told_in_training_and_in_evaluation():
    seen = set()

    def loss(params, batch, train):
        seen.add((train, params["w"].dtype.name))
        return (apply(params, batch["x"].astype(params["w"].dtype)) ** 2).mean()

    made = trainer(loss=loss, compute_dtype="bfloat16")
    assert made.layout  # found before the loss can be looked at
    fit(made, evaluations=by_loss(), max_steps=1)
    assert seen == {(True, "bfloat16"), (False, "bfloat16")}
    assert made.params["w"].dtype == jnp.float32


def test_metrics_of_the_loss_are_reported_and_evaluated(tmp_path):
    def loss(params, batch):
        errors = apply(params, batch["x"]) - batch["y"]
        weights = (batch["y"] > 0).astype(np.float32)
        return (errors**2).mean(), {"positive": mw.Mean.of(errors**2, weights)}

    made = trainer(tmp_path, loss=loss)
    scores = fit(made, evaluations=by_loss(), logging=mw.Logging(every=1))
    positive = {name: x[EXAMPLES["y"] > 0] for name, x in EXAMPLES.items()}
    assert scores["eval/positive"] == pytest.approx(exact_loss(made.params, positive), rel=1e-5)
    assert [step for step, _ in reports(tmp_path, "positive")] == [1, 2, 3, 4, 5, 6]
    assert reports(tmp_path, "eval/positive")[-1] == (6, scores["eval/positive"])


def test_a_weighted_loss_is_the_weighted_mean_over_all():
    weights = np.random.default_rng(1).uniform(size=50).astype(np.float32) ** 8
    examples = {**EXAMPLES, "weight": weights}

    def loss(params, batch):
        return mw.Mean.of((apply(params, batch["x"]) - batch["y"]) ** 2, batch["weight"])

    made = trainer(loss=loss)
    scores = fit(made, examples, evaluations=by_loss(examples), max_steps=1)
    errors = X @ np.asarray(made.params["w"]) + np.asarray(made.params["b"]) - EXAMPLES["y"]
    assert scores["eval/loss"] == pytest.approx(np.average(errors**2, weights=weights), rel=1e-5)


def test_frozen_parameters_stay_to_the_bit_and_have_no_optimizer_state():
    made = trainer(trainable="w")
    before = {name: np.asarray(x) for name, x in made.params.items()}
    fit(made)
    assert np.array_equal(made.params["b"], before["b"])
    assert not np.array_equal(made.params["w"], before["w"])
    assert mw.parallel.nbytes(made.state.opt_state) == 2 * 4 * 4 + 4  # two moments of w, and a count


def test_a_train_step_of_ones_own_replaces_the_usual_one(tmp_path):
    def train_step(state, batch, key):
        move = jax.random.uniform(key)
        params = jax.tree.map(lambda x: x + move * len(batch["x"]), state.params)
        return replace(state, step=state.step + 1, params=params), {"moved": move}

    made = trainer(tmp_path, loss=None, train_step=train_step)
    before = float(made.params["b"])
    fit(made, logging=mw.Logging(every=1), max_steps=3)
    moves = [moved for _, moved in reports(tmp_path, "moved")]
    assert len(set(moves)) == 3
    assert float(made.params["b"]) - before == pytest.approx(16 * sum(moves), rel=1e-5)


def test_the_learning_rate_is_reported_by_the_step_of_the_optimizer(tmp_path):
    rate = optax.linear_schedule(1.0, 0.0, 6)
    made = trainer(tmp_path, optimizer=optax.sgd(rate), lr_schedule=rate, microbatches=2)
    fit(made, epochs=2, logging=mw.Logging(every=1))
    expected = [(step, pytest.approx(1 - (step - 1) / 6)) for step in range(1, 7)]
    assert reports(tmp_path, "learning_rate") == expected


@pytest.mark.parametrize("peak", [None, 1e12])
def test_reports_tell_how_well_the_devices_are_used_as_far_as_that_is_known(tmp_path, monkeypatch, peak):
    monkeypatch.setattr("meshwright.program._utilisation.peak_flops", lambda kind, dtype: peak)
    fit(trainer(tmp_path))
    step_flops = 2 * 2 * 16 * 4  # a product and the gradient of its parameters
    rates = [rate for _, rate in reports(tmp_path, "steps_per_second")]
    tflops = [told for _, told in reports(tmp_path, "tflops_per_device")]
    assert tflops == pytest.approx([rate * step_flops / 8 / 1e12 for rate in rates])
    assert len([share for _, share in reports(tmp_path, "mfu")]) == (0 if peak is None else len(rates))


def test_a_loss_that_is_no_number_ends_the_run_with_its_report_and_without_a_save(tmp_path):
    def loss(params, batch):
        return apply(params, batch["x"]).mean() * jnp.where(params["b"] < -0.25, jnp.nan, 1.0)

    made = trainer(tmp_path, loss=loss, optimizer=optax.sgd(0.1))
    with pytest.raises(DivergedError, match=r"at step 4 is nan.*\s+The newest checkpoint: step 3\."):
        fit(made, logging=mw.Logging(every=1), save=mw.Save(when=1))
    assert np.isnan(reports(tmp_path)[-1][1])
    assert made.step == 4


def test_the_callers_parameters_stay_theirs_and_may_be_of_numpy():
    params = {"w": np.ones(4, np.float32), "b": jnp.zeros(())}
    made = trainer(params=params)
    assert (made.step, float(made.params["b"])) == (0, 0.0)
    fit(made)
    assert float(params["b"]) == 0.0
    assert (params["w"] == 1).all()


def test_parameters_are_any_pytree(tmp_path):
    def loss(params, batch):
        (w, (b,)), *_ = params
        return ((batch["x"] @ w + b - batch["y"]) ** 2).mean()

    start = [(np.zeros(4, np.float32), (np.zeros((), np.float32),)), {}]
    made, again = (trainer(tmp_path, model=None, params=start, loss=loss) for _ in range(2))
    fit(made)
    fit(again)
    assert jax.tree.structure(again.params) == jax.tree.structure(start)
    assert arrays(again) == arrays(made)


def test_training_goes_on_from_parameters_and_optimizer_state_of_another_trainer():
    first = trainer(loss=lambda model, batch: ((model(batch["x"]) - batch["y"]) ** 2).mean())
    fit(first)
    opt_state = mw.base._internal.nested(
        mw.base._internal.named_leaves(first.state.opt_state)
    )  # as a checkpoint has it
    second = trainer(params=first.params, opt_state=opt_state)
    assert jax.tree.structure(second.state.opt_state) == jax.tree.structure(first.state.opt_state)
    assert int(second.state.opt_state[0].count) == 6
    assert second.step == 0


def test_a_state_that_a_step_took_with_it_is_told_lost():
    made = trainer()
    jax.tree.map(lambda x: x.delete(), made.state)
    with pytest.raises(MeshwrightError, match="the state of training is lost"):
        made.params  # noqa: B018


@pytest.mark.parametrize("mesh", ["data=-1,tensor=2", "fsdp=4,tensor=2"])
@pytest.mark.daily(1)
def test_every_mesh_trains_to_the_same_loss(mesh):
    def init(key):
        hidden, out = jax.random.split(key)
        return {"hidden": jax.random.normal(hidden, (4, 16)), "out": jax.random.normal(out, (16, 8))}

    def apply(params, x):
        return jnp.tanh(x @ params["hidden"]) @ params["out"]

    def loss(model, batch):
        return ((model(batch["x"]).sum(-1) - batch["y"]) ** 2).mean()

    rules = (mw.parallel.match("hidden", "fsdp", "tensor"), mw.parallel.match("out", "tensor", "fsdp"))
    options = {"model": (init, apply), "loss": loss, "rules": rules, "optimizer": optax.adam(0.01)}
    split, whole = trainer(mesh=mesh, **options), trainer(**options)
    expected = fit(whole, evaluations=by_loss(), epochs=5)["eval/loss"]
    assert fit(split, evaluations=by_loss(), epochs=5)["eval/loss"] == pytest.approx(expected, rel=1e-5)
    assert "tensor" in split.params["hidden"].sharding.spec


def test_a_loss_and_a_metric_function_that_ask_for_the_step_get_that_of_the_state(tmp_path):
    def loss(params, batch, step=0):
        return params["b"] * step, {"now": step}

    def fitted(workdir, epochs):
        made = trainer(
            workdir, model=None, params={"b": np.zeros((), np.float32)}, loss=loss, optimizer=optax.sgd(1.0)
        )
        asked = {"evaluations": by_loss(metric_fn=lambda scores, step: {"step": step})}
        return made, fit(made, epochs=epochs, **asked)

    fitted(tmp_path, 1)  # three steps
    continued, scores = fitted(tmp_path, 2)
    assert continued.params["b"] == -(0 + 1 + 2 + 3 + 4 + 5)
    assert (scores["eval/now"], scores["eval/step"]) == (6, 6)
