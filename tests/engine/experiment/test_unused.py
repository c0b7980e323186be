"""Parameters and batch statistics that the training loss leaves as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks.models.cases import CASES

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment
from meshwright.engine._untrained_warning import unused


def init(key):
    return {"w": jnp.ones((4, 2)), "forgotten": {"b": jnp.ones(3), "w": jnp.ones(3)}, "spare": jnp.ones(2)}


def loss(params, batch):
    return ((batch["x"] @ params["w"]) ** 2).mean()


def through_a_loop(params, batch):
    def layer(carry, x):
        h, unread = carry
        return (jnp.tanh(h @ params["w"] @ params["w"].T), unread + params["forgotten"]["b"].sum()), None

    (h, _), _ = jax.lax.scan(layer, (batch["x"], jnp.zeros(())), None, length=2)
    return jax.lax.cond(params["spare"][0] > 0, lambda: (h**2).mean(), lambda: h.mean())


def with_metrics(params, batch):
    shown = {"of_forgotten": params["forgotten"]["b"].sum(), "of_spare": params["spare"].sum()}
    return loss(params, batch), shown


TOLD = ("no influence", "for matrices", "batch statistics", "have segments", "with segment 0")


def warnings(run, caplog, **more):
    caplog.set_level("INFO", "meshwright")
    mw.run(experiment(run, **{"model": init, "loss": loss, "max_steps": 2} | more))
    return [said for said in caplog.messages if any(word in said for word in TOLD)]


def test_parameters_without_influence_on_the_loss_are_named_with_their_number(tmp_path, caplog):
    [said] = warnings(tmp_path, caplog)
    assert said.strip() == (
        "! 3 of 4 trained parameters have no influence on the loss: params/forgotten/b, params/forgotten/w, "
        "params/spare. Use them in the loss, freeze them, or leave them out of the model"
    )


def stacks(key):
    return {"first": jnp.ones((4, 6)), "layers": {"scale": jnp.ones((3, 6)), "w": jnp.ones((3, 6, 6))}}


def through_layers(params, batch):
    layer = lambda h, of: (jnp.tanh((h * of["scale"]) @ of["w"]), None)
    return (jax.lax.scan(layer, batch["x"] @ params["first"], params["layers"])[0] ** 2).mean()


def dimensions(params):
    stack = optax.contrib.MuonDimensionNumbers(1, 2)
    return jax.tree.map(lambda x: stack if x.ndim == 3 else None, params)


@pytest.mark.parametrize("options", [{}, {"microbatches": 2, "compute_dtype": "bfloat16"}], ids=str)
def test_stacks_of_vectors_that_muon_takes_for_matrices_are_named(tmp_path, caplog, options):
    of = {"model": stacks, "loss": through_layers} | options
    muon = mw.training.by_path([(".*", optax.contrib.muon(1e-3))])
    [said] = warnings(tmp_path / "low rank", caplog, optimizer=optax.contrib.galore(1e-3, rank=2), **of)
    assert "GaLore takes params/layers/scale for matrices" in said
    caplog.clear()
    [said] = warnings(tmp_path / "as it is", caplog, optimizer=muon, **of)
    assert "Muon takes params/layers/scale for matrices, but the loss scans over their first" in said
    caplog.clear()
    named = optax.contrib.muon(1e-3, muon_weight_dimension_numbers=dimensions)
    assert not warnings(tmp_path / "named", caplog, optimizer=named, **of)


def test_of_many_only_the_first_are_named(tmp_path, caplog):
    def many(key):
        return {"w": jnp.ones((4, 2)), "layers": [jnp.ones(2)] * 5}

    [said] = warnings(tmp_path, caplog, model=many)
    assert "5 of 6" in said
    assert "params/layers/2, …" in said


@pytest.mark.parametrize(
    "options", [{"microbatches": 2}, {"compute_dtype": "bfloat16"}, {"norms": ".*"}], ids=str
)
@pytest.mark.daily(1)
def test_they_are_found_with_every_form_of_the_step(tmp_path, caplog, options):
    if "norms" in options:
        options = {"logging": mw.Logging(norms=".*")}
    [said] = warnings(tmp_path, caplog, optimizer=optax.adamw(1e-3), **options)
    assert "3 of 4" in said


def test_a_value_that_only_a_metric_shows_has_no_influence(tmp_path, caplog):
    [said] = warnings(tmp_path, caplog, loss=with_metrics)
    assert "3 of 4" in said


def test_a_loop_is_followed_and_a_condition_is_an_influence(tmp_path, caplog):
    [said] = warnings(tmp_path, caplog, loss=through_a_loop)
    assert "2 of 4" in said
    assert "spare" not in said


def test_a_parameter_with_a_stopped_gradient_has_an_influence(tmp_path, caplog):
    def stopped(params, batch):
        return loss(params, batch) + sum(map(jnp.sum, jax.lax.stop_gradient(jax.tree.leaves(params))))

    assert not warnings(tmp_path, caplog, loss=stopped)


def test_frozen_parameters_are_not_named(tmp_path, caplog):
    assert not warnings(
        tmp_path, caplog, optimizer=mw.training.Trainable("w", optax.sgd(0.1)), model=frozen_spare
    )


def frozen_spare(key):
    return {"w": jnp.ones((4, 2)), "spare": jnp.ones(2)}


NORMALISED = {"x": np.asarray(EXAMPLES["x"])}


def normalised_init(key):
    state = {"norm": {"mean": jnp.zeros(4), "var": jnp.ones(4)}, "table": jnp.ones(3)}
    return mw.training.Variables({"w": jnp.ones((4, 2))}, state)


def normalised_loss(train):
    def loss(params, batch, model_state):
        x, old = batch["x"], model_state["norm"]
        mean = x.mean(0) if train else old["mean"]
        new = {"mean": 0.9 * old["mean"] + 0.1 * mean, "var": old["var"]} if train else old
        return (((x - mean) @ params["w"]) ** 2).mean(), {}, {**model_state, "norm": new}

    return loss


@pytest.mark.parametrize("microbatches", [1, 2])
def test_batch_statistics_that_do_not_change_are_a_warning(tmp_path, caplog, microbatches):
    run = {"model": normalised_init, "loss": normalised_loss(train=False), "microbatches": microbatches}
    [said] = warnings(tmp_path, caplog, **run)
    assert said.strip() == (
        "! training does not change the batch statistics: model_state/norm/mean, model_state/norm/var. If it "
        "should, call the model in training mode in the loss, for example model(x, train=True), and return "
        "its new state"
    )


def test_batch_statistics_that_change_or_are_frozen_are_no_warning(tmp_path, caplog):
    fixed = mw.training.update_rules([("norm/.*", "none")], optax.sgd(0.1))
    assert not warnings(tmp_path / "a", caplog, model=normalised_init, loss=normalised_loss(train=True))
    run = {"model": normalised_init, "loss": normalised_loss(train=False), "optimizer": fixed}
    assert not warnings(tmp_path / "b", caplog, **run)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.daily(3)
def test_of_a_model_of_real_size_only_what_is_forgotten_is_named(name):
    case, layout, optimizer = CASES[name](), mw.Layout(mw.make_mesh("data=-1")), optax.sgd(0.1)
    params = {"model": case.params, "spare": jax.ShapeDtypeStruct((3,), jnp.float32)}
    zeros = lambda key: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
    target = mw.training.abstract_state(zeros, optimizer, layout)
    step = mw.make_step(lambda params, batch: case.loss(params["model"], batch), optimizer, layout)
    step.trace(target, case.batch)
    parts = dict.fromkeys(("data", "first_rows", "last_step", "first_state"))
    [said] = unused(mw.engine._internal.Training(layout, target, optimizer, case.batch, step, **parts))
    assert said.startswith("1 of ")
    assert ": params/spare. Use" in said


def test_segments_of_packed_texts_that_the_loss_does_not_read_are_named(tmp_path, caplog):
    packed = {"x": np.ones((16, 4), np.float32), "segments": np.ones((16, 4), np.int32)}
    options = {"model": lambda key: {"w": jnp.ones((4, 2))}, "input": mw.Input(packed, batch_size=8)}
    [said] = warnings(tmp_path / "ignored", caplog, **options)
    assert (
        "have segments, from which the loss is not computed, so texts in one row see each other. Give" in said
    )
    caplog.clear()
    reading = lambda params, batch: loss(params, batch) * (batch["segments"] > 0).mean()
    assert not warnings(tmp_path / "read", caplog, **options, loss=reading)


def test_arrays_of_the_batch_that_the_loss_does_not_read_are_each_named(tmp_path, caplog):
    rows = {name: np.ones((16, 4), np.float32) for name in ("x", "segment_ids", "loss_mask")}
    options = {"model": lambda key: {"w": jnp.ones((4, 2))}, "input": mw.Input(rows, batch_size=8)}
    [said] = warnings(tmp_path / "ignored", caplog, **options)
    assert "2 of 3 arrays of the batch have no influence on the loss: loss_mask, segment_ids. If" in said
    caplog.clear()
    reading = lambda params, batch: loss(params, batch) * (batch["segment_ids"] * batch["loss_mask"]).mean()
    assert not warnings(tmp_path / "read", caplog, **options, loss=reading)


@pytest.mark.parametrize(("numbers", "count"), [([0, 0, 0, 0], 8), ([0, 0, 1, 1], 8), ([1, 1, 2, 0], 0)])
def test_rows_that_begin_with_padding_are_told(tmp_path, caplog, numbers, count):
    packed = {"x": np.ones((16, 4), np.float32), "segments": np.tile(np.int32(numbers), (16, 1))}
    said = warnings(
        tmp_path,
        caplog,
        model=lambda key: {"w": jnp.ones((4, 2))},
        input=mw.Input(packed, batch_size=8),
        loss=lambda params, batch: loss(params, batch) * (batch["segments"] == 1).mean(),
    )
    assert sum(f"{count} of 8 rows of the first batch begin with segment 0" in line for line in said) == bool(
        count
    )
