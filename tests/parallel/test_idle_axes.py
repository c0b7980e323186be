"""A mesh axis that nothing names has all its devices compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import LayoutError
from meshwright.plan import _internal as plan

TX = optax.sgd(0.1)
ROWS = {"x": np.ones((16, 8), np.float32)}


def init(key):
    return {"w": jnp.ones((8, 8))}


def loss(params, batch, key):
    return ((batch["x"] @ params["w"]) ** 2).mean()


def step_on(mesh, loss=loss, rules=(), **more):
    layout = mw.Layout(mw.make_mesh(mesh), rules, **more)
    return mw.make_step(loss, TX, layout).compile(mw.training.abstract_state(init, TX, layout), ROWS)


@pytest.mark.parametrize("axis", ["sequence", "expert", "tensor"])
def test_an_axis_that_only_repeats_work_is_refused(axis):
    with pytest.raises(LayoutError, match=f"mesh axis '{axis}' of size 4 only repeats work"):
        step_on(f"{axis}=4,fsdp=2")


@pytest.mark.parametrize(("axis", "function"), [("sequence", "mw.nn.attention"), ("expert", "mw.nn.moe")])
def test_an_axis_that_a_function_splits_over_names_it(axis, function):
    with pytest.raises(LayoutError, match=rf"does not call\.\n  Call `{function}` in the model, or give"):
        step_on(f"{axis}=4,fsdp=2")


def test_a_misspelt_axis_is_told_what_it_is_near():
    with pytest.raises(LayoutError, match="Did you mean 'pipeline'"):
        step_on("pipline=4,fsdp=2")


def test_an_axis_of_one_device_repeats_nothing():
    step_on("data=8,tensor=1")


def test_batches_that_are_to_stay_whole_may_be_repeated_on_all_devices():
    step_on("data=2,fsdp=4", batch_axis_names=())
    with pytest.raises(
        LayoutError, match=r"'tensor' of size 4 only repeats work(.|\n)*batch_axis_names=\(\)"
    ):
        step_on("data=2,tensor=4", batch_axis_names=())


def test_an_axis_is_used_by_a_rule_by_the_batch_by_a_constraint_or_by_a_shard_map():
    def constrained(params, batch, key):
        layer = lambda x: jax.lax.with_sharding_constraint(x @ params["w"], P("data", "tensor"))
        scanned, _ = jax.lax.scan(lambda x, _: (jax.checkpoint(layer)(x), None), batch["x"], None, length=2)
        return scanned.mean()

    def mapped(params, batch, key):
        shift = lambda x: jax.lax.ppermute(x, "tensor", [(i, (i + 1) % 4) for i in range(4)])
        return (
            jax.shard_map(shift, in_specs=P("data"), out_specs=P("data"), check_vma=False)(batch["x"])
        ).mean()

    step_on("data=2,tensor=4", rules=(mw.parallel.match("w", "tensor"),))
    step_on("data=2,tensor=4", batch_axis_names=("data", "tensor"))
    step_on("data=2,tensor=4", constrained)
    step_on(
        "data=2,tensor=4", lambda params, batch, key: loss(params, batch, key) + mapped(params, batch, key)
    )


def test_a_name_of_a_function_is_not_a_use():
    def tensor(x):
        return x + 1

    with pytest.raises(LayoutError, match="'tensor' of size 4 only repeats"):
        step_on("data=2,tensor=4", lambda params, batch, key: jax.jit(tensor)(loss(params, batch, key)))


def described(mesh, run):
    rows = {"x": np.ones((32, 8), np.float32)}
    return mw.Experiment(
        model=init, loss=loss, optimizer=TX, input=mw.Input(rows, 16), max_steps=1, mesh=mesh, workdir=run
    )


def test_an_experiment_and_its_plan_are_refused_alike(tmp_path):
    with pytest.raises(LayoutError, match="'sequence' of size 4 only repeats"):
        mw.plan.compile_ahead(described("sequence=4,fsdp=2", str(tmp_path)))
    with pytest.raises(LayoutError, match="'sequence' of size 4 only repeats"):
        plan.plan_step(described("sequence=4,fsdp=2", str(tmp_path)), "h100:1x8", compiled=False)


def trainer(deployer):
    return mw.Trainer(
        deployer, loss=lambda params, batch: loss(params, batch, None), optimizer=TX, params=init(None)
    )


def test_a_trainer_is_refused_and_where_there_are_several_each_is_told(capsys):
    deployer = mw.Deployer(seed=0, mesh="sequence=4,data=2")
    one = trainer(deployer)
    examples = {"x": np.ones((32, 8), np.float32)}
    with pytest.raises(LayoutError, match="'sequence' of size 4 only repeats"):
        one.fit(examples, 8, max_steps=1)
    for each in (one, trainer(deployer)):
        each.fit(examples, 8, max_steps=1)
    assert capsys.readouterr().err.count("'sequence' of size 4 only repeats") == 2


def test_a_predictor_tells_it_once(capsys):
    deployer = mw.Deployer(seed=0, mesh="data=2,tensor=4")
    predictor = mw.Predictor(deployer, predict=lambda params, batch: batch["x"] * params["scale"])
    for _ in range(2):
        predictor.predict({"x": np.ones((32, 8), np.float32)}, 8, {"scale": np.float32(2)})
    assert capsys.readouterr().err.count("predictions: mesh axis 'tensor' of size 4 only repeats") == 1
