"""Meshes and changes, tried on the traced step."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest

import meshwright as mw
from meshwright.cli.demo import text
from meshwright.engine._experiment._parts import parts_of
from meshwright.errors import LayoutError
from meshwright.lm._models import decoder
from meshwright.plan import _internal as plan
from meshwright.plan._search import Search

ROUND = plan.Rates({"float32": 1e12}, memory=1e12, link=1e11, network=1e10, source="round")


def site(on="h100:1x4", **more):
    experiment = dataclasses.replace(text.experiment(layers=2), **more)
    return plan.site_of(experiment, on, rates=ROUND)


def of_memory(change, available):
    """The same on a chip that has this memory."""
    memory = dataclasses.replace(change.plan.memory, available=available)
    return dataclasses.replace(change, plan=dataclasses.replace(change.plan, memory=memory))


@pytest.fixture(scope="module")
def found():
    return plan.search(site("h100:1x2"))


@pytest.mark.slow
def test_a_search_finds_nothing_worse_than_what_a_hand_would_choose(found):
    by_hand = [site("h100:1x2", mesh=mesh).plan() for mesh in ("data=2", "fsdp=2", "tensor=2")]
    assert found[0].plan.time.seconds <= min(plan.time.seconds for plan in by_hand)


def test_a_search_in_which_no_mesh_can_be_says_why():
    with pytest.raises(LayoutError, match="multiple of 9"):
        plan.search(site("h100:9x1"))


@pytest.mark.slow
def test_a_search_in_which_only_the_own_mesh_can_be_is_of_that():
    rules = (mw.parallel.match("embedding", None, "mine"),)
    found = plan.search(site("h100:16x1", mesh="data=8,mine=2", rules=rules))
    assert {str(change.plan.mesh) for change in found} == {"{'data': 8, 'mine': 2}"}
    assert "as it is" in plan.described_search(found)


@pytest.mark.slow
def test_what_does_not_fit_comes_last_the_smallest_first(found):
    sizes = sorted(change.plan.memory.peak for change in found)
    found = plan.ranked([of_memory(change, sizes[len(sizes) // 2]) for change in found])
    fits = [change.plan.memory.fits for change in found]
    assert fits == sorted(fits, reverse=True)
    assert 0 < sum(fits) < len(fits)
    too_large = [change.plan.memory.peak for change in found[sum(fits) :]]
    assert too_large == sorted(too_large)


def test_a_change_says_what_to_write_on_the_command_line():
    (change,) = plan.tried(site(), [{"mesh": "fsdp=2,tensor=2", "remat": "dots"}])
    assert str(change) == "mesh=fsdp=2,tensor=2 remat=dots"
    assert dict(change.plan.mesh) == {"fsdp": 2, "tensor": 2}


def test_settings_that_cannot_be_are_left_out():
    assert [*plan.tried(site(), [{"mesh": "data=3"}, {"microbatches": 5}])] == []


@pytest.mark.parametrize("settings", [{"microbatches": 2}, {"offloaded": True}])
@pytest.mark.daily(1)
def test_changes_for_memory_take_less_of_it(settings):
    here = site(mesh="data=4")
    (change,) = plan.tried(here, [settings])
    assert change.plan.memory.peak < here.plan().memory.peak


@pytest.fixture
def small(monkeypatch):
    """A search on a chip with this memory, where temporary memory is 64 bytes, divided by microbatches."""

    def of(available):
        here = site("h100:1x1", mesh="data=1")
        whole = here.plan()

        def planned(site, settings):
            temporary = 64 // settings.get("microbatches", 1)
            memory = plan.Memory(0, 0, 0, 0, 0, temporary, available)
            return plan.Change(settings, dataclasses.replace(whole, memory=memory))

        monkeypatch.setattr("meshwright.plan._search.with_settings", planned)
        return Search(here)

    return of


@pytest.mark.parametrize(("available", "last"), [(64, None), (8, 8), (1, 64), (0, 64)])
@pytest.mark.daily(2)
def test_a_search_takes_as_few_microbatches_as_fit_and_at_most_64(small, available, last):
    found = small(available)
    found.fewest_microbatches({"remat": "dots"})
    numbers = [change.settings.get("microbatches", 1) for change in found.ranked()]
    assert max(numbers) == (last or 1)
    assert len(numbers) <= 2  # numbers that cannot be enough are not planned


def of_decoder(on, **more):
    """A decoder whose layers keep nothing, as its model says."""
    cfg = decoder.Config(layers=2)
    return site(on, loss=lambda params, batch: decoder.loss(cfg, params, batch, remat="nothing"), **more)


def with_memory(site, nbytes):
    chip = dataclasses.replace(site.hardware.chip, memory_bytes=nbytes)
    return dataclasses.replace(site, hardware=dataclasses.replace(site.hardware, chip=chip))


@pytest.mark.slow
def test_a_search_finds_what_layers_should_keep():
    found = plan.search(of_decoder("h100:1x2"))
    assert found[0].settings["remat"] == "layers:everything"
    assert found[0].plan.hardware_flops == found[0].plan.model_flops


@pytest.mark.slow
def test_a_search_in_little_memory_offloads_and_takes_more_microbatches():
    here = of_decoder("h100:1x2", mesh="fsdp=2")
    (least,) = plan.tried(here, [{"offloaded": True, "microbatches": 4}])
    found = plan.search(with_memory(here, least.plan.memory.peak))
    assert found[0].plan.memory.fits
    assert all("offload_opt_state" in str(change) for change in found if change.plan.memory.fits)


@pytest.mark.slow
@pytest.mark.parametrize("rules", [decoder.RULES, None], ids=["given rules", "inferred rules"])
def test_meshes_with_as_many_devices_for_the_batch_share_a_trace_and_plan_as_with_their_own(rules):
    settings = {"rules": rules, "remat": "layers:dots"}
    here = site("h100:2x4", **settings)
    meshes = ["data=8", "data=4,fsdp=2", "fsdp=8", "data=2,tensor=4", "fsdp=2,tensor=4"]
    shared = [change.plan for change in plan.tried(here, ({"mesh": mesh} for mesh in meshes))]
    assert len(here.traces) == 3 + 2  # and the first without data, and without fsdp
    assert shared == [site("h100:2x4", **settings, mesh=mesh).plan() for mesh in meshes]


@pytest.mark.slow
def test_meshes_share_a_trace_if_data_and_fsdp_both_split_the_batch_as_they_are_told_to():
    settings = {"rules": decoder.RULES, "remat": "layers:dots"}
    alike = [("data=2,fsdp=2,tensor=2", ("data", "fsdp")), ("fsdp=4,tensor=2", ("fsdp",))]
    meshes = [{"mesh": mesh, "batch_axis_names": names} for mesh, names in alike]
    here = site("h100:2x4", **settings)
    shared = [change.plan for change in plan.tried(here, meshes)]
    assert len(here.traces) == 1 + 1  # and the first without data
    assert shared == [site("h100:2x4", **settings, **mesh).plan() for mesh in meshes]


@pytest.mark.parametrize("axis", ["tensor", "data", "fsdp"])
def test_meshes_without_an_axis_that_the_model_names_get_it_with_size_1(axis):
    def loss(params, batch):
        x = batch["tokens"][:, :64] @ params["w"]
        return jax.lax.with_sharding_constraint(x, jax.P(None, axis)).mean()

    rules = (mw.parallel.match("w", None, "tensor"),)
    found = plan.search(site("h100:1x4", model=lambda key: {"w": jnp.zeros((64, 8))}, loss=loss, rules=rules))
    meshes = [str(change) for change in found]
    assert all(f"{axis}=" in mesh for mesh in meshes)
    assert any(f"{axis}=1" in mesh for mesh in meshes)
    assert len({*meshes}) == len(meshes)


def of_plain_layers(params, batch):
    x = batch["tokens"] @ params["first"]
    for w in params["others"]:
        x = jax.nn.relu(x @ w)
    return (x**2).mean()


@pytest.mark.parametrize("remat", [None, "dots", "nothing"])
def test_a_plan_costs_what_the_step_does_that_a_run_traces(remat):
    shapes = {"first": jnp.zeros((129, 64)), "others": [jnp.zeros((64, 64))] * 2}
    of_plain = {"model": lambda key: shapes, "loss": of_plain_layers, "rules": (mw.parallel.fsdp(),)}
    here = site("h100:1x4", mesh="fsdp=4", remat=remat, **of_plain)
    of_run = parts_of(here.experiment, here.parts.layout.mesh, here.rows)
    of_run = of_run.step.trace(of_run.target, of_run.batch).jaxpr
    assert here.traced == plan.traced_costs(of_run, here.parts.target, here.parts.layout)


def test_a_search_calls_the_loss_once_for_a_mesh_and_a_size_of_microbatches_whatever_the_policy():
    calls = []

    def counted(params, batch):
        calls.append(batch["tokens"].shape)
        return decoder.loss(decoder.Config(layers=2), params, batch, remat="nothing")

    here = site("h100:1x4", loss=counted, mesh="fsdp=4", rules=decoder.RULES)
    for policy in ("everything", "dots", "nothing"):
        assert list(plan.tried(here, [{"remat": f"layers:{policy}"}]))
    assert len(calls) == 1 + 1  # and for the first mesh without data


@pytest.mark.slow
def test_a_search_calls_once_what_makes_the_parameters_for_meshes_that_share_a_step():
    calls, made_by = [], site().experiment.model

    def counted(key):
        calls.append(key)
        return made_by(key)

    here = site("h100:2x4", model=counted, rules=decoder.RULES)
    assert len([*plan.tried(here, [{"mesh": mesh} for mesh in ("data=8", "data=4,fsdp=2", "fsdp=8")])]) == 3
    assert len(calls) == 1


@pytest.mark.parametrize("unusual", [lambda key: key, lambda key: jnp.asarray(1.0)], ids=["key", "weak type"])
def test_a_plan_has_the_state_of_a_run_also_where_it_is_unusual(unusual):
    made = lambda key: {"w": jnp.zeros((64, 8)), "other": unusual(key)}
    loss = lambda params, batch: (batch["tokens"][:, :64] @ params["w"]).mean()
    optimizer = mw.training.Trainable("w", optax.sgd(0.1))
    here = site(model=made, loss=loss, rules=(mw.parallel.fsdp(),), mesh="fsdp=4", optimizer=optimizer)
    of_run = parts_of(here.experiment, here.parts.layout.mesh, here.rows).target
    assert here.parts.target == of_run
    weak = lambda state: [x.weak_type for x in jax.tree.leaves(state)]
    assert weak(here.parts.target) == weak(of_run)


def test_offloading_takes_time():
    here = site(mesh="fsdp=4", on="h100:1x4")
    here = dataclasses.replace(here, given_rates=dataclasses.replace(ROUND, host=1e9))
    (change,) = plan.tried(here, [{"offloaded": True}])
    moved = 2 * here.plan().memory.optimizer  # there and back
    assert change.plan.time.host == pytest.approx(moved / 1e9, rel=1e-3)
    assert change.plan.memory.optimizer < 100
    assert "to and from the host" in plan.described(change.plan)


def test_activations_in_the_hosts_memory_take_none_of_the_device():
    remats = ("layers:dots_no_batch", "layers:offload_dots_no_batch")
    kept, offloaded = plan.tried(of_decoder("h100:1x1"), [{"remat": remat} for remat in remats])
    assert offloaded.plan.memory.temporary < kept.plan.memory.temporary


def compiled_with(temporary):
    """A compiler that says how much temporary memory a step takes, or that it is too much, if None."""

    def compile_step(settings):
        if temporary[settings["remat"]] is None:
            raise plan.NotCompiledError("RESOURCE_EXHAUSTED: out of memory")
        return plan.Compiled([], temporary[settings["remat"]])

    return compile_step


@pytest.fixture(scope="module")
def of_policies():
    here = site("h100:1x1", mesh="data=1")
    remats = ("layers:everything", "layers:dots", "layers:nothing")
    return here, plan.ranked([*plan.tried(here, ({"remat": remat} for remat in remats))])


@pytest.mark.parametrize("too_much", [10**15, None], ids=["by its figure", "by its refusal"])
def test_a_finalist_that_does_not_fit_as_compiled_is_not_recommended(of_policies, too_much):
    here, found = of_policies
    first = found[0].settings["remat"]
    compile_step = compiled_with({change.settings["remat"]: 1000 for change in found} | {first: too_much})
    judged = plan.with_finalists(here, found, compile_step)
    assert [change.settings["remat"] for change in judged][-1] == first
    assert not judged[-1].plan.memory.fits
    assert judged[0].plan.compiled
    assert "  compiled" in plan.described_search(judged)


def test_no_more_finalists_are_compiled_than_are_needed(of_policies):
    here, found = of_policies
    seen = []
    plan.with_finalists(here, found * 3, lambda settings: seen.append(settings) or plan.Compiled([], 10))
    assert len(seen) == 3
