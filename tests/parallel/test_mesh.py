from dataclasses import dataclass

import jax
import optax
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax.sharding import AxisType

import meshwright as mw
from meshwright.errors import AxisError, LayoutError
from meshwright.parallel._mesh import group_parts, grouped_mesh, mesh_sizes


def test_text_and_mapping_make_the_same_mesh():
    assert mw.make_mesh("data=-1, tensor=2") == mw.make_mesh({"data": 4, "tensor": 2})


def test_minus_one_is_the_rest_of_the_devices():
    assert dict(mw.make_mesh("data=-1,fsdp=2").shape) == {"data": 4, "fsdp": 2}


def test_the_last_axis_is_laid_over_neighbouring_devices():
    devices = mw.make_mesh("data=4,tensor=2").devices
    assert [d.id for d in devices[0]] == [jax.devices()[0].id, jax.devices()[1].id]


def test_axes_are_auto_so_that_ordinary_model_code_runs():
    assert set(mw.make_mesh("data=8").axis_types) == {AxisType.Auto}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data=3", "needs 3 devices, this run has 8"),
        ("data=-1,fsdp=3", "needs a multiple of 3 devices"),
        ("data=2,tensor=2", "Try data=-1"),
        ("data=-1,fsdp=-1", "at most one may be -1"),
        ("data=0", "at least 1"),
        ("data", "cannot read 'data'"),
        ("data=2,data=4", "appears twice"),
        ("", "cannot read"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_in_words(text, says):
    with pytest.raises(LayoutError, match=says):
        mw.make_mesh(text)


@dataclass(frozen=True)
class Fake:
    """A device of another machine, which can be arranged and not used."""

    id: int
    process_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"


@dataclass(frozen=True)
class FakeOfSlice(Fake):
    slice_index: int = 0


@dataclass(frozen=True)
class FakeTpu(FakeOfSlice):
    coords: tuple[int, ...] = ()
    core_on_chip: int = 0


def interleaved(num_processes, each):
    """Devices numbered so that neighbours are of different processes."""
    return [Fake(i, i % num_processes) for i in range(num_processes * each)]


def test_what_is_behind_the_semicolon_stays_inside_a_process():
    mesh = mw.make_mesh("data=-1; fsdp=2,tensor=-1", interleaved(num_processes=2, each=4))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert [{d.process_index for d in group.flat} for group in mesh.devices] == [{0}, {1}]


def test_processes_are_groups_on_cpus_whose_slices_are_all_number_0():
    devices = [FakeOfSlice(i, i // 4) for i in range(8)]
    mesh = mw.make_mesh("data=-1; fsdp=-1", devices)
    assert dict(mesh.shape) == {"data": 2, "fsdp": 4}
    assert [{d.process_index for d in group} for group in mesh.devices] == [{0}, {1}]


def test_groups_that_there_are_not_may_be_processes_on_one_machine():
    with pytest.raises(LayoutError, match=r"needs 2 groups .*has 1\.\n.*or meshwright launch local -n 2 to"):
        mw.make_mesh("data=2; fsdp=4")


def test_slices_count_rather_than_processes_where_they_are_told():
    devices = [FakeOfSlice(i, i // 2, "gpu", slice_index=i // 4) for i in range(16)]
    mesh = mw.make_mesh("data=-1; fsdp=4", devices)
    assert [{d.slice_index for d in group} for group in mesh.devices] == [{0}, {1}, {2}, {3}]


def test_slices_of_a_tpu_are_not_split_and_their_rings_are_neighbours():
    devices = [
        FakeTpu(16 * s + i, 4 * s + i // 4, "tpu", "TPU v5 lite", slice_index=s, coords=(i % 4, i // 4, 0))
        for s in range(2)
        for i in range(16)
    ]
    assert mw.make_mesh("data=2; fsdp=8,tensor=2", devices).size == 32  # two axes share a ring of 4
    mesh = mw.make_mesh("data=2; fsdp=4,tensor=4", devices)
    for s, group in enumerate(mesh.devices):
        assert {d.slice_index for d in group.flat} == {s}
        assert all(min(len({d.coords[axis] for d in ring}) for axis in (0, 1)) == 1 for ring in group)


def test_an_axis_in_both_parts_has_the_product_with_its_inner_places_side_by_side():
    mesh = mw.make_mesh("data=2; data=2,fsdp=2", interleaved(num_processes=2, each=4))
    assert dict(mesh.shape) == {"data": 4, "fsdp": 2}
    assert [{d.process_index for d in row} for row in mesh.devices] == [{0}, {0}, {1}, {1}]


@given(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 4, 6]), st.sampled_from([1, 2]))
def test_every_device_has_one_place_and_every_group_one_block(num_processes, each, tensor):
    assume(each % tensor == 0)
    mesh = mw.make_mesh(f"data=-1; fsdp=-1,tensor={tensor}", interleaved(num_processes, each))
    assert sorted(d.id for d in mesh.devices.flat) == list(range(num_processes * each))
    assert all(len({d.process_index for d in block.flat}) == 1 for block in mesh.devices)
    assert dict(mesh.shape) == mesh_sizes(
        f"data=-1; fsdp=-1,tensor={tensor}", num_processes * each, num_processes
    )


def test_one_process_is_one_group():
    assert dict(mw.make_mesh("data=-1; fsdp=4,tensor=2").shape) == {"data": 1, "fsdp": 4, "tensor": 2}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data=3; fsdp=4", r"needs 3 groups .* before the semicolon, this run has 2"),
        ("data=2; fsdp=3", "needs 3 devices, after the semicolon, each group has 4"),
        ("data=2; fsdp=-1,tensor=3", "needs a multiple of 3 devices, .* each group has 4"),
        ("data=-1,expert=-1; fsdp=4", r"at most one may be -1 \(the rest of 2 groups"),
        ("data=2; fsdp=-1,tensor=-1", r"at most one may be -1 \(the rest of 4 devices"),
        ("; fsdp=4", "cannot read ''"),
        ("data=2; fsdp=2; tensor=2", "cannot read"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_both_numbers(text, says):
    with pytest.raises(LayoutError, match=says):
        mw.make_mesh(text, interleaved(num_processes=2, each=4))


@pytest.mark.parametrize(
    "text", ["data=-1,fsdp=8", "data=2,fsdp=-1", "pipeline=1,data=8,tensor=2", "data=16"]
)
def test_leading_axes_of_a_plain_shape_go_over_the_slices(text):
    """GPUs of two hosts, a process each: `jax.make_mesh` would refuse them."""
    devices = [FakeOfSlice(i, i, "gpu", "H100", slice_index=i // 8) for i in range(16)]
    mesh = mw.make_mesh(text, devices)
    assert dict(mesh.shape) == mesh_sizes(text, 16)
    assert [d.slice_index for d in mesh.devices.flat] == [0] * 8 + [1] * 8


def test_a_plain_shape_that_would_straddle_slices_is_refused():
    devices = [FakeOfSlice(i, i // 3, "gpu", slice_index=i // 3) for i in range(6)]
    with pytest.raises(LayoutError, match="does not fit 2 slices of 3 devices"):
        mw.make_mesh("data=3,fsdp=2", devices)


def test_groups_of_different_sizes_are_refused():
    devices = [Fake(0, 0), Fake(1, 0), Fake(2, 1)]
    with pytest.raises(LayoutError, match=r"2 groups .* have \[1, 2\] devices"):
        mw.make_mesh("data=-1; fsdp=-1", devices)


def test_devices_listed_group_by_group_are_laid_out_as_the_semicolon_says():
    mesh = grouped_mesh("data=2,fsdp=2; fsdp=2", 4, jax.devices())
    over, inside = group_parts("data=2,fsdp=2; fsdp=2", 4, 8)
    assert (over, inside) == ({"data": 2, "fsdp": 2}, {"fsdp": 2})
    assert [[device.id for device in row] for row in mesh.devices] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_without_a_semicolon_the_leading_axes_go_over_the_groups():
    assert group_parts("data=4,fsdp=16", 8, 64) == ({"data": 4, "fsdp": 2}, {"data": 1, "fsdp": 8})


def test_a_step_is_traced_for_more_devices_than_there_are():
    layout = mw.Layout(
        grouped_mesh("fsdp=512,tensor=8", 512, 4096), (mw.parallel.match("w", "fsdp", "tensor"),)
    )
    tx = optax.adam(1e-3)
    state = mw.training.abstract_state(lambda key: {"w": jax.numpy.ones((4096, 64))}, tx, layout)
    step = mw.make_step(lambda params, batch, key: (batch["x"] @ params["w"]).mean(), tx, layout)
    step.trace(state, {"x": jax.ShapeDtypeStruct((512, 4096), "float32")})
    assert state.params["w"].sharding.shard_shape((4096, 64)) == (8, 8)
    assert step.jaxpr is not None


def test_a_model_that_names_an_axis_which_the_mesh_lacks_is_told_to_add_it():
    def trace_on(mesh):
        split = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, jax.P("tensor")))
        with mw.parallel._internal.in_mesh(mw.make_mesh(mesh)):
            split.trace(jax.ShapeDtypeStruct((8,), "float32"))

    with pytest.raises(AxisError, match=r"'tensor', and the mesh data=8 (.|\n)*'data=8,tensor=1'") as told:
        trace_on("data=8")
    assert told.value.axis == "tensor"
    trace_on("data=8,tensor=1")
