"""The axes of the meshes that a search tries: their order, by made-up plans, and what real models can use."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks import axes
from benchmarks.models import mixture

import meshwright as mw
from meshwright.errors import AxisError
from meshwright.lm._models import decoder
from meshwright.parallel._axes import AXES as TABLE
from meshwright.plan import _internal as plan
from meshwright.plan._axes import alone, longer, mesh_of
from meshwright.plan._meshes import Meshes
from meshwright.plan._search import Search

H100S = plan.hardware_named("h100:2x8")
ROUND = plan.Rates({"float32": 1e12}, memory=1e12, link=1e11, network=1e10, source="round")
AXES = ("tensor", "expert", "sequence", "pipeline")


def test_a_mesh_has_the_axes_of_the_model_and_all_other_devices():
    assert mesh_of({}, H100S) == "fsdp=16"
    assert mesh_of({"tensor": 2, "pipeline": 2}, H100S, fsdp=2) == "pipeline=2,data=2,fsdp=2,tensor=2"
    assert mesh_of({"sequence": 16}, H100S) == "sequence=16"
    assert mesh_of({}, H100S, fsdp=1) == "data=16"


def test_tensor_stays_inside_a_host_alone_and_longer():
    assert {"tensor": 8} in [sizes for chain in alone(H100S) for sizes in chain]
    assert {"tensor": 16} not in [sizes for chain in alone(H100S) for sizes in chain]
    assert dict(longer({"tensor": 4}, H100S))["tensor"] == {"tensor": 8}
    assert "tensor" not in dict(longer({"tensor": 8}, H100S))
    assert dict(longer({"tensor": 8}, H100S))["sequence"] == {"tensor": 8, "sequence": 2}


def init(key):
    keys = jax.random.split(key, 3)
    return {
        "embedding": jax.random.normal(keys[0], (64, 32)),
        "layers": jax.random.normal(keys[1], (4, 8, 32, 32)),
        "router": jax.random.normal(keys[2], (4, 32, 8)),
    }


def loss(params, batch, attends, scan):
    """A mixture of eight experts, each of which computes every token; with attention, or without."""

    def block(layer, x):
        weights, router = layer
        q = x.reshape(*x.shape[:2], 4, 8)
        x = x + (mw.nn.attention(q, q, q, causal=True).reshape(x.shape) if attends else jnp.sin(x))
        gates = jax.nn.softmax(x @ router)
        each = jnp.einsum("ebtd,edf->ebtf", jnp.einsum("bte,btd->ebtd", gates, x), weights)
        return x + jnp.einsum("ebtf,bte->btf", jnp.tanh(each), gates)

    x = params["embedding"][batch["tokens"]]
    layers = params["layers"], params["router"]
    x = scan(block, layers, x)
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["embedding"].T, batch["tokens"]).mean()


def scanned(block, layers, x):
    return jax.lax.scan(lambda x, layer: (block(layer, x), None), x, layers)[0]


def site(on="h100:2x8", *, attends=True, scan=mw.nn.layers, length=32, **more):
    tokens = {"tokens": np.zeros((64, length), np.int32)}
    experiment = mw.Experiment(
        workdir="runs/x", model=init, loss=lambda params, batch: loss(params, batch, attends, scan),
        optimizer=optax.sgd(0.1), input=mw.Input(tokens, batch_size=64), max_steps=4,
        **more,
    )  # fmt: skip
    return plan.site_of(experiment, on, rates=ROUND)


class MadeUp:
    """Plans by a formula of the sizes of a mesh, or an error for axes that do not apply."""

    def __init__(self, site, seconds, peak=lambda sizes: 1, refused=()):
        self.asked, self.settings, self._base = [], [], site.plan()
        self._seconds, self._peak, self._refused = seconds, peak, refused

    def __call__(self, settings):
        sizes = mw.parallel._internal.mesh_sizes(settings["mesh"], 16)
        self.asked.append(dict(sizes))
        self.settings.append(settings)
        for axis in self._refused:
            if axis in sizes:
                return AxisError("no", axis)
        memory = plan.Memory(0, 0, 0, 0, 0, self._peak(sizes), 100)
        time = plan.StepTime(self._seconds(sizes), 0.0)
        return plan.Change(settings, dataclasses.replace(self._base, mesh=sizes, memory=memory, time=time))


@pytest.fixture(scope="module")
def here():
    return site(mesh="fsdp=16")


def test_a_search_follows_the_axes_that_make_the_step_quicker(here):
    best = {"tensor": 2, "sequence": 4}
    made = MadeUp(
        here, lambda sizes: 10 + sum(abs(math.log2(sizes.get(x, 1) / best.get(x, 1))) for x in AXES)
    )
    Meshes(here, made).run()
    assert best in [{axis: size for axis, size in sizes.items() if axis in AXES} for sizes in made.asked]
    assert len(made.asked) < 40


def test_an_axis_that_does_not_apply_is_asked_for_once(here):
    made = MadeUp(here, lambda sizes: 16 / sizes.get("tensor", 1), refused=("sequence", "pipeline"))
    Meshes(here, made).run()
    assert [sum(axis in sizes for sizes in made.asked) for axis in ("sequence", "pipeline")] == [1, 1]


def test_the_best_pipeline_is_planned_with_rounds_and_by_1f1b(here):
    made = MadeUp(here, lambda sizes: 16 / sizes.get("pipeline", 1))
    Meshes(here, made).run()
    assert [each["pipeline_schedule"] for each in made.settings if "pipeline_schedule" in each] == ["1f1b"]
    assert any("pipeline_rounds" in each for each in made.settings)


@pytest.mark.slow
def test_axes_are_made_longer_until_a_step_fits(here):
    made = MadeUp(
        here, lambda sizes: 1, peak=lambda sizes: 1600 / math.prod(sizes.get(axis, 1) for axis in AXES)
    )
    Meshes(here, made).run()
    assert any(math.prod(sizes.get(axis, 1) for axis in AXES) == 16 for sizes in made.asked)


def test_meshes_that_do_not_divide_the_batch_are_not_planned(here):
    few = dataclasses.replace(here.experiment.input, batch_size=4)
    made = MadeUp(here, lambda sizes: 1)
    Meshes(dataclasses.replace(here, experiment=dataclasses.replace(here.experiment, input=few)), made).run()
    assert made.asked
    assert all(4 % math.prod(n for axis, n in x.items() if axis in ("data", "fsdp")) == 0 for x in made.asked)


def test_two_axes_are_tried_together_where_none_alone_divides_the_batch(here, monkeypatch):
    few = dataclasses.replace(here.experiment.input, batch_size=1)
    made = MadeUp(here, lambda sizes: 1)
    for name, axis in TABLE.items():
        monkeypatch.setitem(TABLE, name, dataclasses.replace(axis, longest=min(axis.longest, 8)))
    Meshes(dataclasses.replace(here, experiment=dataclasses.replace(here.experiment, input=few)), made).run()
    assert {"sequence": 2, "tensor": 8} in made.asked


def test_experts_are_planned_with_batches_split_over_them_and_not(here):
    asked = []
    made = MadeUp(here, lambda sizes: 1)
    Meshes(here, lambda settings: asked.append(settings) or made(settings)).run()
    of_experts = [settings for settings in asked if "expert=2" in settings["mesh"]]
    assert {settings.get("batch_axis_names") for settings in of_experts} == {None, ("data",)}
    assert str(plan.Change(of_experts[-1], None)).startswith("mesh=")


def axes_found(found):
    return {axis for change in found for axis, size in change.plan.mesh.items() if size > 1 and axis in AXES}


CASES = {
    "all": ({}, {"expert", "sequence", "pipeline"}),  # of its features none may be split over tensor
    "no attention": ({"attends": False}, {"expert", "pipeline"}),
    "no mw.nn.layers": ({"scan": scanned}, {"expert", "sequence"}),
    "rows that do not divide": ({"length": 31}, {"expert", "pipeline"}),
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow) for case in CASES])
def test_the_axes_of_a_search_are_those_that_the_step_can_use(case):
    settings, expected = CASES[case]
    search = Search(site(**settings))
    Meshes(search._site, search.plan_or_error).run()
    assert axes_found(search.ranked()) == expected


def test_what_does_not_apply_is_refused_by_hand_with_what_to_do():
    messages = {
        "sequence=4": ("no attention", "Call `mw.nn.attention` in the model"),
        "pipeline=4": ("no mw.nn.layers", "Call them by `mw.nn.layers"),
        "sequence=16": ("rows that do not divide", "sees rows of 32 positions"),
    }
    for mesh, (case, message) in messages.items():
        with pytest.raises(AxisError, match=r"axis '(sequence|pipeline)'") as caught:
            site(mesh=f"{mesh},fsdp=-1", **CASES[case][0]).plan()
        assert message in str(caught.value)


@pytest.mark.slow
def test_rows_of_128_k_tokens_fit_by_the_axis_sequence():
    cfg = dataclasses.replace(decoder.config("llama-3-8b"), layers=4)
    tokens = {"tokens": np.zeros((16, 131_073), np.int32)}
    experiment = mw.Experiment(
        workdir="runs/x", rules=decoder.RULES, model=lambda key: decoder.init(cfg, key), max_steps=4,
        loss=lambda params, batch: decoder.loss(cfg, params, batch, remat="nothing"),
        optimizer=optax.adamw(1e-4), input=mw.Input(tokens, batch_size=16), compute_dtype="bfloat16",
    )  # fmt: skip
    found = plan.search(plan.site_of(experiment, "h100:8x8"))
    assert found[0].plan.memory.fits
    assert found[0].plan.mesh["sequence"] >= 4


@pytest.mark.slow
def test_experts_of_mixtral_on_16_gpus_take_no_longer_by_their_axis_and_send_a_fourth():
    cfg = dataclasses.replace(decoder.config("mixtral-8x7b"), layers=4)
    tokens = {"tokens": np.zeros((64, 2049), np.int32)}
    experiment = mw.Experiment(
        workdir="runs/x", rules=decoder.RULES, model=lambda key: decoder.init(cfg, key), max_steps=4,
        loss=lambda params, batch: decoder.loss(cfg, params, batch, remat="nothing"),
        optimizer=optax.adamw(1e-4), input=mw.Input(tokens, batch_size=64), compute_dtype="bfloat16",
    )  # fmt: skip
    meshes = "fsdp=16", "fsdp=2,expert=8"
    plans = [plan.site_of(dataclasses.replace(experiment, mesh=mesh), "h100:2x8").plan() for mesh in meshes]
    sent = [sum(each.sent_bytes for each in found.exchanges) for found in plans]
    assert plans[1].time.seconds <= 1.01 * plans[0].time.seconds
    assert sent[1] < sent[0] / 4


def test_the_table_of_the_benchmark_has_the_best_mesh_and_the_best_without_the_axes(here):
    made = MadeUp(here, lambda sizes: 1)
    found = [made({"mesh": mesh}) for mesh in ("fsdp=4,sequence=4", "fsdp=8,tensor=2")]
    line = axes.row(axes.CASES[0], found)
    assert line.count("|") == 6
    assert line.index("fsdp=4,sequence=4") < line.index("fsdp=8,tensor=2")
    page = f"before {axes.MARKS[0]}old{axes.MARKS[1]} after"
    assert axes.written(axes.written(page, "new"), "new") == page.replace("old", "new")


def test_a_mixture_of_the_benchmark_computes_its_loss():
    cfg = mixture.Config(vocabulary=32, model=16, layers=2, heads=2, key_heads=1, head=8, experts=8,
                         feed_forward=8, chosen=2, group=8)  # fmt: skip
    params = jax.eval_shape(lambda key: mixture.init(cfg, key), jax.random.key(0))
    batch = {"tokens": jax.ShapeDtypeStruct((2, 17), jnp.int32)}
    assert jax.eval_shape(lambda *given: mixture.loss(cfg, *given).value, params, batch).shape == ()
