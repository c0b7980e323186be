from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.program._hlo._collectives import collectives
from program.hlo.stored_hlo import stored


def program(*lines, num_partitions=8):
    """A program of these lines over operands %p and %q of 32 bytes each."""
    operands = [f"%{name} = f32[8]{{0}} parameter({i})" for i, name in enumerate("pq")] + [
        "%token = token[] after-all()"
    ]
    body = "\n".join(f"  {line}" for line in (*operands, *lines))
    return (
        f"HloModule m, num_partitions={num_partitions}\n\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}\n}}\n"
    )


def exchanged(hlo, mesh, **where):
    """Bytes of a step by kind and axes, of those of more than a kilobyte each."""
    found = Counter()
    for each in collectives(hlo, mesh):
        if each.nbytes > 1024 and all(getattr(each, name) == value for name, value in where.items()):
            found[each.kind, *each.axes] += each.times * each.nbytes
    return found


@pytest.mark.parametrize(
    ("line", "kind", "size", "nbytes", "sent"),
    [
        ("all-reduce(%p, %q), replica_groups=[2,4]<=[8], to_apply=%add", "all-reduce", 4, 64, 96),
        ("all-reduce(%p), replica_groups={}, to_apply=%add", "all-reduce", 8, 32, 56),
        ("all-gather(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}", "all-gather", 2, 64, 32),
        ("reduce-scatter(%p), replica_groups=[2,4]<=[8], to_apply=%add", "reduce-scatter", 4, 32, 24),
        ("all-to-all(%p, %q), replica_groups=mesh['a'=4,'b'=2] {'b'}, x=1", "all-to-all", 2, 64, 32),
        ("collective-permute(%p), source_target_pairs={{0,1},{1,0}}", "collective-permute", 2, 32, 32),
        ("collective-broadcast(%p), replica_groups={{0,1,2}}", "collective-broadcast", 3, 32, 32),
        (
            "send(%p, %token), frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}",
            "send",
            3,
            32,
            32,
        ),
        ("all-gather-start(%p), replica_groups=[2,4]<=[8]", "all-gather", 4, 128, 96),
    ],
)
def test_each_kind_has_its_bytes_and_what_a_ring_sends_of_them(mesh, line, kind, size, nbytes, sent):
    (found,) = collectives(program(f"%x = f32[8]{{0}} {line}"), mesh)
    assert (found.kind, found.group_size, found.nbytes, found.sent_nbytes) == (kind, size, nbytes, sent)


@pytest.mark.parametrize(
    "line",
    [
        "all-reduce-done(%s), replica_groups=[2,4]<=[8]",
        "all-reduce(%p), replica_groups=[8,1]<=[8], to_apply=%add",
        "collective-permute(%p), source_target_pairs={{0,0},{1,1}}",
        'add(%p, %q), metadata={op_name="all-reduce(x), replica_groups={}"}',
    ],
)
def test_what_exchanges_nothing_is_not_there(mesh, line):
    assert collectives(program(f"%x = f32[8]{{0}} {line}"), mesh) == []


def test_devices_that_cannot_be_read_are_an_error(mesh):
    with pytest.raises(ValueError, match="cannot read the devices of all-reduce x"):
        collectives(program("%x = f32[8]{0} all-reduce(%p), replica_groups=new_form"), mesh)


def test_a_mesh_of_another_size_is_an_error(mesh):
    with pytest.raises(UsageError, match=r"is for 16 devices, but the mesh .* has 8"):
        collectives(program(num_partitions=16), mesh)


LAYER = 2 * (4 * 256 * 256 + 3 * 256 * 512)
"""Bytes of the matrices of one of the six layers, in bfloat16."""
ACTIVATIONS = 2 * 128 * 256
"""Bytes of one sequence's, where the layers hand them on."""


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_with_data_alone_gradients_are_summed_once(platform):
    """Those of norms and of the head in float32, as they are computed; and with them the loss."""
    embedding, head, norms, loss = 2 * 512 * 256, 4 * 512 * 256, 4 * (6 * 2 + 1) * 256, 4
    assert exchanged(*stored(platform, "data=8")) == {
        ("all-reduce", "data"): 6 * LAYER + embedding + head + norms + loss
    }


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_layers_split_by_fsdp_are_gathered_twice_and_their_gradients_scattered_once(platform):
    """Twice: forward, and when it is computed again. TPUs gather q, k, v and o a third time, backward."""
    found = exchanged(*stored(platform, "fsdp=8"), times=6)
    third = 4 * 2 * 256 * 256 if platform == "tpu" else 0
    assert found["all-gather", "fsdp"] == 6 * (2 * LAYER + third)
    assert found["reduce-scatter", "fsdp"] == 6 * LAYER


def test_an_exchange_without_a_source_has_that_of_its_fusion():
    found = collectives(*stored("tpu", "fsdp=8"))
    assert {each.source for each in found if each.kind == "reduce-scatter"} == {
        "transpose(jvp())/while/dot_general",
        "transpose(jvp())/dot_general",
        "transpose(jvp())/scatter-add",
    }


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_each_axis_of_three_has_what_is_exchanged_along_it(platform):
    """Over tensor two sums of activations forward, one when they are computed again, and two backward."""
    found = exchanged(*stored(platform, "data=2,fsdp=2,tensor=2"), times=6)
    assert found["all-gather", "fsdp"] >= 6 * 2 * LAYER // 2
    assert found["reduce-scatter", "fsdp"] + found["all-reduce", "fsdp"] == 6 * LAYER // 2
    assert found["all-reduce", "tensor"] == 6 * 5 * 8 * ACTIVATIONS
    assert found["all-reduce", "data"] == 6 * LAYER // 4


def test_an_exchange_says_whether_it_leaves_the_host_and_where_it_comes_from():
    hlo, mesh = stored("cuda", "data=2,fsdp=2,tensor=2")
    found = collectives(hlo, mesh, devices_per_host=4)
    assert {each.axes for each in found if each.crosses_processes} == {("data",), ("data", "fsdp")}
    assert not any(each.crosses_processes for each in collectives(hlo, mesh))
    assert "jvp()/while/dot_general" in {each.source for each in found}


def test_what_slices_of_tpus_exchange_through_their_hosts_is_there():
    """Six layers are gathered forward. Backward the compiler has taken the first turn out of the loop."""
    hlo, mesh = stored("slices", "fsdp=2,data=4")
    assert exchanged(hlo, mesh, times=6) == {("all-gather", "fsdp"): 6 * LAYER}
    found = collectives(hlo, mesh, devices_per_host=4)
    assert {(each.axes, each.crosses_processes) for each in found} == {(("fsdp",), True), (("data",), False)}


def over_slices(transfer, target):
    return program(
        f"%s = (f32[8]{{0}}, u32[], token[]) send(%p, %token), is_host_transfer=true, frontend_attributes="
        f'{{_xla_megascale_target={target},_xla_megascale_transfer_type="{transfer}"}}',
        num_partitions=4,
    )


@pytest.mark.parametrize(
    ("transfer", "target", "expected"),
    [
        ("ALL_REDUCE", '"{1,2}x{0:3}"', ("all-reduce", ("data",), 2, 32)),
        ("ALL_GATHER", "{{100000,200000},{100001,200001}}", ("all-gather", ("data",), 2, 64)),
        ("ALL_REDUCE", "{{100000,200000,100001,200001}}", ("all-reduce", ("data", "tensor"), 4, 32)),
        ("ONE_TO_ONE", "{{100000->200000},{200000->100000}}", ("collective-permute", ("data",), 2, 32)),
    ],
)
def test_each_way_to_write_devices_of_several_slices(mesh, transfer, target, expected):
    (found,) = collectives(over_slices(transfer, target), mesh)
    assert (found.kind, found.axes, found.group_size, found.nbytes) == expected


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().as_text()


def struct(mesh, shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))


def on_devices(function, mesh, shape, *spec):
    """The program of a function that says itself what devices exchange, over an array of float32."""
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P(*spec), out_specs=P(*spec), check_vma=False)
    return compiled(mapped, struct(mesh, shape, *spec))


def test_loops_are_multiplied_out(mesh):
    def layers(x):
        return jax.lax.scan(lambda x, _: (jax.lax.psum(x, "tensor") / 2, None), x, length=3)[0]

    found = collectives(on_devices(lambda xs: jax.lax.map(layers, xs), mesh, (2, 4, 64), None, "data"), mesh)
    assert [(each.kind, each.axes, each.times, each.nbytes) for each in found] == [
        ("all-reduce", ("tensor",), 2 * 3, 2 * 64 * 4)
    ]


def test_what_is_gathered_counts_whole_and_what_is_scattered_before(mesh):
    def exchange(x):
        whole = jax.lax.all_gather(x, ("data", "fsdp"), tiled=True)
        return jax.lax.psum_scatter(jnp.sin(whole), "tensor", tiled=True)

    found = collectives(on_devices(exchange, mesh, (8, 64), "data"), mesh)
    assert {(each.kind, each.axes, each.group_size, each.nbytes) for each in found} == {
        ("all-gather", ("data", "fsdp"), 4, 4 * 4 * 64 * 4),
        ("reduce-scatter", ("tensor",), 2, 4 * 4 * 64 * 4),
    }


def loop(*, test="compare(%i, %limit), direction=LT", after="%next = s32[] add(%i, %step)", start="%zero"):
    """A loop with an exchange in it, in the way that TPUs' programs have them."""
    return f"""HloModule m, num_partitions=8

%condition (c: (s32[], s32[], f32[8])) -> pred[] {{
  %c = (s32[], s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %kept = s32[] get-tuple-element(%c), index=1
  %limit = s32[] constant(6)
  ROOT %test = pred[] {test}
}}

%body (b: (s32[], s32[], f32[8])) -> (s32[], s32[], f32[8]) {{
  %b = (s32[], s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %kept = s32[] get-tuple-element(%b), index=1
  %x = f32[8] get-tuple-element(%b), index=2
  %step = s32[] constant(1)
  {after}
  %sum = f32[8] all-reduce(%x), replica_groups={{}}, to_apply=%add
  ROOT %turned = (s32[], s32[], f32[8]) tuple(%next, %kept, %sum)
}}

ENTRY %main (x: f32[8]) -> (s32[], s32[], f32[8]) {{
  %x = f32[8] parameter(0)
  %zero = s32[] constant(0)
  %two = s32[] constant(2)
  %start = s32[] copy({start})
  %carried = (s32[], s32[], f32[8]) tuple(%start, %two, %x)
  ROOT %while = (s32[], s32[], f32[8]) while(%carried), condition=%condition, body=%body
}}
"""


@pytest.mark.parametrize(
    ("changes", "turns"),
    [
        ({}, 6),
        ({"test": "compare(%limit, %i), direction=GT"}, 6),
        ({"test": "compare(%i, %kept), direction=LT"}, 2),
        ({"start": "%two"}, 4),
        ({"after": "%next = s32[] add(%kept, %i)"}, 3),
        ({"after": "%one = s32[] add(%i, %step)\n  %next = s32[] add(%one, %kept)"}, 2),
    ],
)
def test_turns_are_counted_where_the_compiler_does_not_say(mesh, changes, turns):
    (found,) = collectives(loop(**changes), mesh)
    assert (found.times, found.in_open_loop) == (turns, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"test": "compare(%i, %limit), direction=NE"},
        {"after": "%next = s32[] add(%i, %i)"},
        {"after": "%next = s32[] multiply(%i, %step)"},
        {"after": "%next = s32[] copy(%i)"},
    ],
)
def test_turns_that_are_not_known_are_said_to_be(mesh, changes):
    (found,) = collectives(loop(**changes), mesh)
    assert (found.times, found.in_open_loop) == (1, True)


def test_a_loop_that_may_end_at_any_turn_counts_once_and_says_so(mesh):
    def halved(x):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    found = collectives(compiled(halved, struct(mesh, (8, 8), "data")), mesh)
    assert {(each.kind, each.axes, each.times, each.in_open_loop) for each in found} == {
        ("all-reduce", ("data",), 1, True)
    }


def test_of_a_condition_the_larger_branch_counts(mesh):
    def update(x):
        return jax.lax.cond(x.sum() > 0, lambda x: x, lambda x: jax.lax.psum(jnp.sin(x), "data"), x)

    (found,) = collectives(on_devices(update, mesh, (8, 8), "data"), mesh)
    assert (found.kind, found.axes) == ("all-reduce", ("data",))


def test_of_a_condition_that_is_said_to_be_seldom_true_the_smaller_branch_counts(mesh):
    def update(x):
        with jax.named_scope("seldom"):
            return jax.lax.cond(x.sum() > 0, lambda x: jax.lax.psum(jnp.sin(x), "data"), lambda x: x, x)

    assert not collectives(on_devices(update, mesh, (8, 8), "data"), mesh)


def test_a_ring_of_permutations_is_along_its_axis(mesh):
    def shift(x):
        return jax.lax.ppermute(x, "fsdp", [(0, 1), (1, 0)])

    (found,) = collectives(on_devices(shift, mesh, (8, 8), "fsdp"), mesh)
    assert (found.kind, found.axes, found.group_size) == ("collective-permute", ("fsdp",), 2)
    assert found.nbytes == found.sent_nbytes == 4 * 8 * 4


SHAPES = st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (2, 1, 4)])


def written(numbers):
    return ",".join(map(str, numbers))


def same_groups(groups, text):
    """Whether devices written as `text` take part together as in these groups, seen on several meshes."""
    listed = "{" + ",".join("{" + written(group) + "}" for group in groups) + "}"
    programs = [program(f"%x = f32[8]{{0}} all-reduce(%p), replica_groups={each}") for each in (listed, text)]
    meshes = [mw.make_mesh(shape) for shape in ("a=8", "a=2,b=4", "a=4,b=2", "a=2,b=2,c=2")]
    one, other = (
        [collectives(hlo, mesh, devices_per_host=n) for mesh in meshes for n in (1, 2, 4)] for hlo in programs
    )
    return one == other


@given(shape=SHAPES, size=st.sampled_from([2, 4, 8]), data=st.data())
def test_counted_groups_are_those_that_numpy_makes(shape, size, data):
    order = data.draw(st.permutations(range(len(shape))))
    groups = np.arange(8).reshape(shape).transpose(order).reshape(-1, size)
    transposed = "" if order == sorted(order) else f"T({written(order)})"
    assert same_groups(groups, f"[{8 // size},{size}]<=[{written(shape)}]{transposed}")


@given(shape=SHAPES, order=st.none() | st.permutations(range(8)), data=st.data())
def test_groups_along_axes_are_those_that_numpy_makes(shape, order, data):
    dims = data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1))
    devices = np.arange(8) if order is None else np.array(order)
    groups = np.moveaxis(devices.reshape(shape), sorted(dims), range(-len(dims), 0))
    sizes = ",".join(f"'axis_{dim}'={size}" for dim, size in enumerate(shape))
    ids = "" if order is None else f", device_ids=({written(order)})"
    axes = ",".join(f"'axis_{dim}'" for dim in dims)
    size = np.prod([shape[dim] for dim in dims])
    assert same_groups(groups.reshape(-1, size), f"mesh[{sizes}]{ids} {{{axes}}}, dimensions={{0}}")


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=2,'b'=4] {'a','b':(2)2}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ],
)
def test_groups_along_axes_of_reordered_devices_and_along_parts_of_axes(text, groups):
    assert same_groups(groups, text)
