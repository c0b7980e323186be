"""Models of all kinds in a trainer."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import meshwright as mw
from engine.adapters import models
from engine.trainer.runs import EXAMPLES, X, apply, by_loss, exact_loss, fit, init, trainer

MLPS = {
    "nnx": models.NnxMlp,
    "linen": mw.functional(models.LinenMlp(), X),
    "equinox": models.EquinoxMlp,
    "pair": (models.init, models.apply),
}
NORMS = {
    "nnx": models.NnxNorm,
    "linen": mw.functional(models.LinenNorm(), X),
    "equinox": models.EquinoxNorm,
}


def loss(model, batch):
    return ((model(batch["x"]).sum(-1) - batch["y"]) ** 2).mean()


@functools.cache
def expected():
    """The loss of the plain functions, called by a loss that takes the parameters."""
    plain = lambda params, batch: loss(lambda x: models.apply(params, x), batch)
    made = trainer(model=None, params=models.init(jax.random.key(7)), loss=plain)
    return fit(made, evaluations=by_loss())["eval/loss"]


@pytest.mark.parametrize("library", MLPS)
@pytest.mark.daily(2)
def test_a_model_of_any_library_trains_alike(library):
    made = trainer(model=MLPS[library], loss=loss, params=models.init(jax.random.key(7)))
    assert fit(made, evaluations=by_loss())["eval/loss"] == pytest.approx(expected(), rel=1e-4)


def computing_at_once(params, batch):
    with jax.ensure_compile_time_eval():  # as Equinox's enumerations do, and with them diffrax
        two = jnp.asarray(1.0) + 1
    return ((batch["x"] @ params["w"]) ** two).mean()


@pytest.mark.parametrize("mesh", ["data=8", "data=2,fsdp=4"])
def test_a_loss_may_compute_constants_while_it_is_traced(mesh):
    params = {"w": np.ones(4, np.float32)}
    made = trainer(mesh=mesh, model=None, params=params, loss=computing_at_once)
    fit(made, max_steps=1)
    assert made.step == 1


def test_rules_for_all_parameters_leave_nothing_to_infer(monkeypatch):
    monkeypatch.setattr("meshwright.engine._trainer._recipe.inferred_rules", lambda *_, **__: 1 / 0)
    fit(trainer(mesh="data=2,fsdp=4", rules=[mw.parallel.match(".*")]), max_steps=1)
    with pytest.raises(ZeroDivisionError):
        fit(trainer(mesh="data=2,fsdp=4", rules=[mw.parallel.match("w")]), max_steps=1)


@pytest.mark.parametrize("library", NORMS)
@pytest.mark.daily(1)
def test_statistics_move_in_training_and_stay_in_evaluation(library):
    made = trainer(model=NORMS[library], loss=loss)
    before = jax.tree.map(np.asarray, made.model_state)
    fit(made, max_steps=1)
    moved = jax.tree.map(np.asarray, made.model_state)
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (before, moved)), strict=True))
    made.evaluate(mw.Evaluation("loss", EXAMPLES, batch_size=16))
    assert all((a == b).all() for a, b in zip(*map(jax.tree.leaves, (moved, made.model_state)), strict=True))


def test_evaluation_uses_the_statistics_and_no_dropout():
    made = trainer(model=models.NnxNorm, loss=loss)
    scores = fit(made, evaluations=by_loss(), epochs=1)
    norm = {
        name: np.asarray(x)
        for name, x in mw.base._internal.named_leaves((made.params, made.model_state)).items()
    }
    normed = (X - norm["1/norm/mean"]) / np.sqrt(norm["1/norm/var"] + 1e-5)
    out = normed * norm["0/norm/scale"] + norm["0/norm/bias"]
    assert scores["eval/loss"] == pytest.approx(((out.sum(-1) - EXAMPLES["y"]) ** 2).mean(), rel=1e-5)


@pytest.mark.parametrize(
    "module",
    [nnx.Linear(4, 3, rngs=nnx.Rngs(7)), eqx.nn.Linear(4, 3, key=jax.random.key(7))],
    ids=["nnx", "eqx"],
)
@pytest.mark.daily(1)
def test_a_module_that_is_there_starts_from_its_own_values_and_keeps_them(module):
    leaves = lambda tree: sorted(np.asarray(x).ravel().tolist() for x in jax.tree.leaves(tree))
    before = leaves(eqx.filter(module, eqx.is_array) if isinstance(module, eqx.Module) else nnx.state(module))
    made = trainer(model=module, loss=loss)
    assert leaves(made.params) == before
    fit(made)
    after = leaves(eqx.filter(module, eqx.is_array) if isinstance(module, eqx.Module) else nnx.state(module))
    assert after == before != leaves(made.params)


def test_a_model_may_name_the_dimensions_of_its_parameters():
    def linear(rngs):
        initial = nnx.initializers.normal()
        return nnx.Linear(4, 8, kernel_init=nnx.with_partitioning(initial, ("embed", "mlp")), rngs=rngs)

    made = trainer(mesh="fsdp=4,tensor=2", model=linear, loss=loss)
    fit(made, max_steps=1)
    assert made.params["kernel"].sharding.spec == P("fsdp", "tensor")


@pytest.mark.slow
def test_a_loss_says_which_parameters_are_split_over_tensor():
    made = trainer(mesh="data=4,tensor=2", model=models.NnxMlp, loss=loss)
    fit(made, max_steps=1)
    specs = {name: x.sharding.spec for name, x in mw.base._internal.named_leaves(made.params).items()}
    assert specs["hidden/kernel"] == P(None, "tensor")
    assert specs["out/kernel"] == P("tensor")


@pytest.mark.slow
def test_a_model_may_say_how_its_batch_is_split_also_in_the_last_of_an_evaluation():
    def constrained(params, x):
        return apply(params, jax.lax.with_sharding_constraint(x, P("data")))

    made = trainer(model=(init, constrained))
    assert fit(made, evaluations=by_loss())["eval/loss"] == pytest.approx(exact_loss(made.params), rel=1e-6)


@pytest.mark.slow
def test_randomness_of_evaluation_is_the_same_each_time_and_of_each_batch_its_own():
    def loss(model, batch, key):
        return model(batch["x"]).mean() * 0 + jax.random.uniform(key)

    made = trainer(loss=loss)
    scores = [fit(made, epochs=epochs, evaluations=by_loss())["eval/loss"] for epochs in (1, 2)]
    first = fit(trainer(loss=loss), evaluations=by_loss({name: x[:16] for name, x in EXAMPLES.items()}))[
        "eval/loss"
    ]
    assert scores[0] == scores[1] != first


def test_a_loss_may_mention_the_state_and_return_it_anew():
    def loss(params, batch, model_state, train):
        mean = 0.5 * model_state["mean"] + 0.5 * batch["x"].mean(0)
        centred = batch["x"] - (mean if train else model_state["mean"])
        return ((apply(params, centred) - batch["y"]) ** 2).mean(), {}, {"mean": mean}

    start = {"params": init(jax.random.key(0)), "model_state": {"mean": jnp.zeros(4)}}
    made = trainer(model=None, loss=loss, **start)
    scores = fit(made, evaluations=by_loss(), epochs=1, shuffle=False)
    mean = np.zeros(4)
    for i in range(3):
        mean = 0.5 * mean + 0.5 * X[16 * i : 16 * (i + 1)].mean(0)
    np.testing.assert_allclose(made.model_state["mean"], mean, rtol=1e-5)
    centred = {**EXAMPLES, "x": X - mean}
    assert scores["eval/loss"] == pytest.approx(exact_loss(made.params, centred), rel=1e-5)


def test_a_state_may_hold_the_key_that_the_next_step_draws_from(tmp_path):
    def loss(params, batch, model_state):
        draw, key = jax.random.split(model_state["key"])
        noise = 0.1 * jax.random.normal(draw, batch["y"].shape)
        return ((apply(params, batch["x"]) + noise - batch["y"]) ** 2).mean(), {}, {"key": key}

    given = {"params": init(jax.random.key(0)), "model_state": {"key": jax.random.key(7)}}
    for max_steps in (1, 3):  # the second continues the first
        made = trainer(tmp_path, model=None, loss=loss, **given)
        fit(made, max_steps=max_steps)
    expected = jax.random.key(7)
    for _ in range(3):
        _, expected = jax.random.split(expected)
    assert made.model_state["key"] == expected
