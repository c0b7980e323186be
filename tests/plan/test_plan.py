import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES
from meshwright.errors import LayoutError, UsageError
from meshwright.plan import _internal as plan
from meshwright.program._hlo._collectives import collectives
from meshwright.training import _internal as train

RULES = (mw.parallel.match("up", "fsdp", "tensor"), mw.parallel.match("down", "tensor", "fsdp"))
ROUND = plan.Rates({"float32": 1e9}, memory=1e9, link=1e9, network=1e8, source="round")


def made(key):
    return {"up": jax.random.normal(key, (4, 1024)), "down": jnp.ones((1024, 4))}


def loss(params, batch, key):
    return ((jax.nn.relu(batch["x"] @ params["up"]) @ params["down"]) ** 2).mean()


def experiment(**more):
    described = {
        "workdir": "never/made",
        "model": made,
        "loss": loss,
        "optimizer": optax.adam(1e-3),
        "input": mw.Input(EXAMPLES, 64),
        "max_steps": 1,
        "mesh": "data=2,fsdp=2,tensor=2",
        "rules": RULES,
    }
    return mw.Experiment(**described | more)


def planned(on="cpu:8", **more):
    if not more:
        return usual(on)
    return plan.plan_step(experiment(**more), on, compiled=on.startswith("cpu"), rates=ROUND)


@functools.cache
def usual(on):
    return plan.plan_step(experiment(), on, compiled=on.startswith("cpu"), rates=ROUND)


def test_a_device_holds_its_share_of_parameters_and_optimizer():
    found = planned().memory
    assert found.params == 2 * 4 * 1024 * 4 // 4
    assert found.optimizer == 2 * found.params + 4  # and Adam's count
    assert found.batch == 64 * 4 * 4 // 4


def test_the_peak_is_what_the_compiler_says():
    found, ahead = planned(), mw.plan.compile_ahead(experiment())
    assert found.compiled
    assert found.memory.peak == pytest.approx(ahead.peak_bytes, rel=0.1)


def test_what_is_exchanged_is_what_a_run_exchanges():
    ran = mw.plan.compile_ahead(experiment())
    counted = collectives(ran.compiled.as_text(), mw.make_mesh("data=2,fsdp=2,tensor=2"))
    assert sum(each.sent_bytes for each in planned().exchanges) == sum(
        each.times * each.sent_nbytes for each in counted
    )


def test_it_is_of_what_the_mesh_rules_make_of_the_experiment_there():
    rules = (
        ("NVIDIA H100.*:2x4", mw.parallel.override(mesh="fsdp=4,data=2", microbatches=2)),
        (".*", mw.parallel.override()),
    )
    found = planned("h100:2x4", mesh_rules=rules)
    assert dict(found.mesh) == {"fsdp": 4, "data": 2}
    assert found.settings["microbatches"] == 2
    assert "the mesh rule 'NVIDIA H100.*:2x4' sets mesh, microbatches here" in " ".join(found.notes)


def test_a_thousand_devices_need_not_be_there():
    examples = {"x": np.ones((512, 4), np.float32)}
    found = planned("h100:128x8", mesh="data=128,fsdp=4,tensor=2", input=mw.Input(examples, 512))
    assert (found.num_devices, found.memory.params) == (1024, 2 * 4 * 1024 * 4 // 8)


def test_nothing_is_allocated_or_written(tmp_path):
    before = jax.live_arrays()  # held, so that none of another test ends meanwhile
    planned("h100:1x8", model=lambda key: {"up": jnp.ones((4, 10**9)), "down": jnp.ones((10**9, 4))})
    assert len(jax.live_arrays()) == len(before)


def test_without_a_compiler_it_is_estimated_and_says_what_to_install(monkeypatch):
    monkeypatch.setattr("meshwright.plan._topology.GPU_PLUGINS", ("no_such_plugin",))
    found = plan.plan_step(experiment(), "h100:1x8")
    assert not found.compiled
    assert "meshwright[cuda13]" in found.notes[-1]
    assert "meshwright[cuda13]" in plan.described(found)


@pytest.mark.slow
def test_a_product_without_tiles_is_compiled_without_triton_and_the_plan_says_so(monkeypatch):
    """As those of 197 positions of a vision transformer, when the GPU is absent."""
    site = plan.site_of(experiment(), "cpu:8")

    def compiled(self, experiment):
        if experiment.compile.options.get("xla_gpu_enable_triton_gemm", True):
            raise jax.errors.JaxRuntimeError(
                "INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot"
            )
        return plan.Compiled([], 10**9)

    monkeypatch.setattr(plan.Site, "_compiled", compiled)
    found = plan.planned(site, site.compile)
    assert found.compiled
    assert "compiled with xla_gpu_enable_triton_gemm=False" in found.notes[0]


def test_a_checkpoint_costs_what_its_dtypes_take():
    whole, narrow = (
        plan.plan_step(
            experiment(save=mw.Save(cast=cast)), "h100:4x2", compiled=False, bandwidth=1e3
        ).checkpoint
        for cast in ((), "bfloat16")
    )
    assert whole.nbytes == 3 * 2 * 4 * 1024 * 4 + 12
    assert narrow.nbytes == whole.nbytes - 2 * 4 * 1024 * 2
    assert whole.seconds == math.ceil(whole.nbytes / 4) / 1e3


def test_an_axis_that_splits_nothing_is_refused_as_a_run_refuses_it():
    for planning in (planned, lambda **more: mw.plan.compile_ahead(experiment(**more))):
        with pytest.raises(LayoutError, match=r"'tensr' of size 2 only repeats.*Did you mean 'tensor'"):
            planning(mesh="data=4,tensr=2")


def test_what_a_compiler_refuses_for_its_size_does_not_fit_and_says_so(monkeypatch):
    monkeypatch.setattr("meshwright.plan._topology.GPU_PLUGINS", ("json",))  # one that is here

    def refuse():
        raise plan.NotCompiledError("RESOURCE_EXHAUSTED: ran out of memory in space hbm")

    found = plan.planned(plan.site_of(experiment(), "h100:1x8"), refuse)
    assert not found.compiled
    assert not found.memory.fits
    assert "ran out of memory in space hbm" in found.notes[-1]
    assert "does NOT fit, the compiler says" in plan.described(found)


def test_gradients_that_are_not_there_yet_when_it_is_fullest_are_told_so():
    found = planned()
    early = dataclasses.replace(found, memory=dataclasses.replace(found.memory, gradients=0))
    assert "gradients                 none yet" in plan.described(early)


def test_gradients_of_each_microbatch_are_no_sign_of_activations_split_wrongly():
    examples = {"x": np.ones((512, 4), np.float32)}
    found = planned("h100:1x8", mesh="data=8", microbatches=8, input=mw.Input(examples, 512))
    assert sum(each.times for each in found.exchanges) >= 8
    assert "mw.parallel.shard_batch_dim" not in " ".join(found.notes)


@pytest.mark.parametrize("bandwidth", [0, -1e9, math.inf, math.nan])
def test_a_bandwidth_that_no_host_has_is_refused(bandwidth):
    with pytest.raises(UsageError, match="--bandwidth 1"):
        plan.plan_step(experiment(), "h100:8", bandwidth=bandwidth)


def test_activations_that_are_summed_over_the_batch_are_told_of():
    def wide(key):
        return {"table": jnp.ones((8, 64)), "w": jnp.ones((64, 64))}

    def of_rows(params, batch, key):
        x = params["table"][(batch["x"][:, 0] > 0).astype(int)]
        return ((jnp.repeat(x[:, None], 512, 1) @ params["w"]) ** 2).mean()

    rules = (mw.parallel.match("table", None, "fsdp"), mw.parallel.match("w", "fsdp"))
    found = planned(mesh="fsdp=8", model=wide, loss=of_rows, rules=rules)
    assert "mw.parallel.shard_batch_dim" in " ".join(found.notes)


@pytest.mark.slow
def test_a_plan_says_how_high_the_peak_is_if_xla_keeps_the_rows_of_experts():
    def experts(key):
        return {"row": jnp.ones(4096), "w": jnp.ones((4, 4096, 4096))}

    def of_experts(params, batch):
        rows = jnp.tanh(batch["x"] * params["row"])
        sizes = jnp.full(4, rows.shape[0] // 4)
        return jnp.sin(jax.lax.ragged_dot(rows, params["w"], sizes)).mean()

    def notes(num_rows):
        rows = mw.Input({"x": np.ones((num_rows, 1), np.float32)}, num_rows)
        settings = {"model": experts, "loss": of_experts, "input": rows, "mesh": "data=1"}
        return " ".join(planned("h100:1", **settings, rules=()).notes)

    assert "multiplies each row by all 4 experts of its device" in notes(2**10)
    assert "XLA makes these rows again" not in notes(2**10)
    assert "the peak is higher, at most" in notes(2**20)


def test_operations_that_are_estimated_as_if_nothing_split_them_are_told_of():
    def pooled(params, batch, key):
        x = batch["x"] @ params["up"]
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID").mean()

    assert "reduce_window_max" in " ".join(planned("h100:8", loss=pooled).notes)
    assert "split" not in " ".join(planned("h100:8").notes)


def test_what_does_not_fit_the_mesh_is_the_error_that_a_run_gives():
    with pytest.raises(LayoutError, match=r"(?s)rules: .*params/up"):
        planned("h100:1x8", mesh="fsdp=8")
    with pytest.raises(LayoutError, match=r"mesh.* needs .*16"):
        planned("h100:1x8", mesh="data=16")
    with pytest.raises(UsageError, match="--fake-devices 16"):
        planned("cpu:16", mesh="data=16")


def test_a_plan_says_what_fits_and_what_bounds_it():
    text = plan.described(planned("h100:1x8"))
    assert "fits" in text
    assert "A step takes" in text
    assert "data 2 × fsdp 2 × tensor 2" in text
    assert "round" in text


def test_a_plan_draws_the_schedule_of_1f1b():
    schedule = train.OneForwardOneBackward(2, 4)
    text = plan.described(dataclasses.replace(planned("h100:1x8"), pipeline=schedule))
    assert "4 microbatches by 1F1B take 5 ticks forward and as many back ('), in 20% of which" in text
    assert "the inputs of 4 at most" in text
    assert ["stage", "1", ".", "0", "1", "2", "0'", "3", "1'", "2'", "3'", "."] in [
        line.split() for line in text.splitlines()
    ]


def test_what_is_over_the_chip_does_not_fit():
    found = planned("h100:1x8").memory
    assert not dataclasses.replace(found, available=found.peak - 1).fits
    assert dataclasses.replace(found, available=found.peak).fits


def attending(attend):
    """A loss of 1,024 tokens a row, with one layer of attention."""

    def loss(params, batch):
        x = (
            batch["x"].astype("bfloat16")[:, :1, None, None] * jnp.ones((1, 1024, 8, 64), "bfloat16")
        ) * params["w"]
        return (attend(x, x, x) ** 2).mean(dtype="float32")

    return {"loss": loss, "model": lambda key: {"w": jnp.ones((8, 64), "bfloat16")}, "rules": None}


def test_attention_by_cudnn_is_planned_without_cudnn():
    attends = (lambda *x: mw.nn.attention(*x, form="cudnn"), mw.nn.attention)
    by_name, by_itself = (planned("h100:8", mesh="data=8", **attending(each)) for each in attends)
    assert by_name.time == by_itself.time
    assert by_name.memory == by_itself.memory
    assert by_name.time.compute > 0


def test_a_model_that_calls_cudnn_itself_is_told_what_to_do():
    attend = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
    with pytest.raises(UsageError, match=r"implementation='cudnn'.*\n.*mw\.nn\.attention.*nvidia-cudnn-cu13"):
        planned("h100:8", mesh="data=8", **attending(attend))
