"""A step compiled ahead of its run."""

import jax
import jax.numpy as jnp
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment
from meshwright.errors import LayoutError, UsageError


def wide(key):
    return {"up": jax.random.normal(key, (4, 1024)), "down": jnp.ones((1024, 4))}


def of_wide(params, batch, key):
    return ((jax.nn.relu(batch["x"] @ params["up"]) @ params["down"]) ** 2).mean()


def ahead(run, **more):
    described = {"model": wide, "loss": of_wide, "optimizer": optax.adam(1e-3)}
    return mw.plan.compile_ahead(experiment(run, **described | more))


def test_the_state_counts_once_although_it_goes_in_and_comes_out(tmp_path):
    found = ahead(tmp_path, mesh="data=8")
    assert found.state_bytes == 3 * 4 * 2 * 4 * 1024 + 12  # parameters and two moments; step, count, seed
    assert found.state_bytes + found.batch_bytes <= found.peak_bytes < 2 * found.state_bytes


def test_a_split_state_takes_a_share_of_each_device(tmp_path):
    rules = (mw.parallel.match("up", None, "fsdp"), mw.parallel.match("down", "fsdp"))
    whole, split = ahead(tmp_path, mesh="data=8"), ahead(tmp_path, mesh="fsdp=8", rules=rules)
    assert split.state_bytes == pytest.approx(whole.state_bytes / 8, rel=0.01)


@pytest.mark.parametrize(
    ("more", "times"),
    [({}, 1), ({"microbatches": 4}, 1), ({"remat": "nothing"}, 7 / 5), ({"mesh": "data=4"}, 1 / 4)],
)
def test_it_counts_operations_of_all_microbatches_and_of_what_is_computed_again(tmp_path, more, times):
    described = {"mesh": "data=1", "model": wide, "loss": of_wide, "input": mw.Input(EXAMPLES, 64)} | more
    found = mw.plan.compile_ahead(
        experiment(tmp_path, **described), jax.devices()[: 4 if "mesh" in more else 1]
    )
    forward_and_backward = 5 * 2 * 64 * 4 * 1024  # two products and three: the examples need no gradient
    assert found.flops == pytest.approx(times * forward_and_backward)
    assert f"{found.flops:.3g} FLOP" in str(found)


def test_a_batch_over_the_devices_of_one_is_a_share_of_it(tmp_path):
    assert ahead(tmp_path, mesh="data=8").batch_bytes == 16 * 4 * 4 // 8


def test_nothing_is_allocated_run_or_written(tmp_path):
    before = jax.live_arrays()  # held, so that none of another test ends meanwhile
    mw.plan.compile_ahead(experiment(tmp_path / "run", model=lambda key: {"w": jnp.ones((4, 10**9))}))
    assert len(jax.live_arrays()) == len(before)
    assert not (tmp_path / "run").exists()


def test_it_is_the_step_that_the_run_compiles(tmp_path):
    described = experiment(
        tmp_path, mesh="data=2,tensor=4", model=wide, loss=of_wide, optimizer=optax.sgd(1e-6)
    )
    target = mw.run(described).state
    state, _ = mw.plan.compile_ahead(described).compiled(target, {"x": EXAMPLES["x"][:16]})
    assert int(state.step) == 11


def test_the_mesh_rule_of_the_devices_given_decides(tmp_path):
    rules = (
        ("cpu:4", mw.parallel.override(mesh="fsdp=4")),
        ("cpu:8", mw.parallel.override(mesh="data=2,fsdp=4")),
    )
    four = mw.plan.compile_ahead(experiment(tmp_path, mesh_rules=rules), jax.devices()[:4])
    assert four.mesh == {"fsdp": 4}


def test_what_a_run_refuses_it_refuses(tmp_path):
    with pytest.raises(LayoutError, match=r"mesh .*data=-1,fsdp=-1"):
        ahead(tmp_path, mesh="data=-1,fsdp=-1")
    with pytest.raises(UsageError, match="scalar"):
        ahead(tmp_path, loss=lambda params, batch, key: batch["x"])
