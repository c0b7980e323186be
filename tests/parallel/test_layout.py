from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import LayoutError


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def spec(mesh, rule, name, *shape):
    return mw.Layout(mesh, (rule,)).spec(name, struct(*shape))


def test_the_first_rule_that_answers_decides(mesh):
    layout = mw.Layout(mesh, (mw.parallel.match("q", "fsdp"), mw.parallel.match(".*", "tensor")))
    assert layout.spec("layers/0/q", struct(8, 8)) == P("fsdp")
    assert layout.spec("layers/0/o", struct(8, 8)) == P("tensor")


def test_a_pattern_matches_whole_components_at_the_end_of_a_name(mesh):
    rule = mw.parallel.match("q|k", "fsdp")
    assert spec(mesh, rule, "layers/0/q", 8) == P("fsdp")
    assert spec(mesh, rule, "layers/0/freq", 8) == P()
    assert spec(mesh, rule, "q/bias", 8) == P()


def test_without_a_rule_an_array_is_replicated(mesh):
    assert mw.Layout(mesh, ()).spec("w", struct(8, 8)) == P()


def test_fsdp_splits_the_longest_dimension_that_divides(mesh):
    assert spec(mesh, mw.parallel.fsdp(), "w", 3, 512, 257) == P(None, "fsdp")


def test_fsdp_leaves_small_arrays_whole(mesh):
    assert spec(mesh, mw.parallel.fsdp(), "bias", 512) == P()


def test_specs_have_one_spelling(mesh):
    assert spec(mesh, mw.parallel.match("w", ("fsdp",), None), "w", 8, 8) == P("fsdp")


def test_a_standard_axis_that_the_mesh_lacks_splits_nothing():
    flat = mw.make_mesh("data=8")
    assert spec(flat, mw.parallel.match("w", ("tensor", "data"), "fsdp"), "w", 8, 8) == P("data")


def test_all_arrays_that_do_not_fit_are_named_at_once(mesh):
    layout = mw.Layout(
        mesh,
        (
            mw.parallel.match("q", "tesnor"),
            mw.parallel.match("k", None, "fsdp"),
            mw.parallel.match("v", "data", "data"),
        ),
    )
    with pytest.raises(LayoutError) as raised:
        layout.shardings({"q": struct(8), "k": struct(8, 7), "v": struct(8, 8), "fine": struct(3)})
    message = str(raised.value)
    assert "Did you mean 'tensor'?" in message
    assert "dimension 1 has size 7, which mesh axis 'fsdp' of size 2 does not divide" in message
    assert "used for two dimensions" in message
    assert "fine" not in message


def test_a_batch_is_split_over_those_batch_axes_that_the_mesh_has():
    assert mw.Layout(mw.make_mesh("data=2,fsdp=4")).batch_sharding.spec == P(("data", "fsdp"))
    assert mw.Layout(mw.make_mesh("tensor=8")).batch_sharding.spec == P()
    assert mw.Layout(mw.make_mesh("data=4,tensor=2")).batch_ways == 4


def test_batch_axes_must_be_in_the_mesh(mesh):
    with pytest.raises(LayoutError, match="not in the mesh"):
        mw.Layout(mesh, batch_axis_names=("replica",))


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=4))
def test_what_fsdp_says_always_divides(shape):
    mesh = mw.make_mesh("data=2,fsdp=4")
    sharding = NamedSharding(mesh, spec(mesh, mw.parallel.fsdp(min_size=1), "w", *shape))
    sharding.shard_shape(tuple(shape))  # raises where it does not divide
    assert sharding.spec == P() if all(n % 4 for n in shape) else "fsdp" in sharding.spec


def test_explain_shows_name_shape_dtype_spec_and_bytes_per_device(mesh):
    table = mw.Layout(mesh, (mw.parallel.match("w", "fsdp", "tensor"),)).explain(
        {"w": struct(64, 128), "b": struct(128)}
    )
    row = next(line for line in table.splitlines() if line.startswith("w "))
    assert row.split("  ")[0] == "w"
    assert all(part in row for part in ("64 × 128", "float32", "fsdp, tensor", "8,192", "8 KiB"))
    assert "replicated" in table
    assert table.splitlines()[-1].split() == ["total", "8,320", "8.5", "KiB"]


def test_a_notebook_shows_the_table_of_placements_as_html(mesh):
    large = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    table = mw.Layout(mesh, (mw.parallel.match("w", "fsdp", "tensor"),)).explain(
        {"w": jax.ShapeDtypeStruct((64, 32), jnp.float32), "a<b": large}, frozen=["w"], width=40
    )
    shown = ElementTree.fromstring(f"<div>{table._repr_html_()}</div>")
    lines = [[cell.text or "" for cell in line] for line in shown.iter("tr")]
    assert lines == [list(line) for line in table.cells]
    assert lines[0] == ["name", "shape", "dtype", "spec", "parameters", "per device", "trained"]
    assert [line[0] for line in lines[1:]] == ["a<b", "w", "total"]
    assert "a<b 1024 × 1024 (4 MiB) stays whole" in shown.findtext("p")
    assert str(table).splitlines()[0].startswith("name")


def test_explain_folds_layers_that_are_alike(mesh):
    table = mw.Layout(mesh, ()).explain({"layers": [{"q": struct(4)} for _ in range(3)]})
    assert "layers/{3 alike}/q" in table
    assert len(table.splitlines()) == 3


def test_activations_stay_split_by_example_where_the_weights_are_split_by_feature():
    layout = mw.Layout(
        mw.make_mesh("fsdp=8"), (mw.parallel.match("table", None, "fsdp"), mw.parallel.match("w", "fsdp"))
    )
    params = layout.place({"table": jnp.ones((32, 64)), "w": jnp.ones((64, 64))})
    ids = jax.ShapeDtypeStruct((512,), jnp.int32, sharding=layout.batch_sharding)

    def model(params, ids):
        return mw.parallel.embedding_lookup(params["table"], ids) @ params["w"]

    with jax.set_mesh(layout.mesh):
        text = jax.jit(model).lower(params, ids).compile().as_text()
    found = mw.observe.collectives(text, layout.mesh)
    assert {each.kind for each in found} == {"all-gather"}
    assert sum(each.nbytes for each in found) == 4 * (32 * 64 + 64 * 64)


def test_looking_up_rows_exchanges_the_table_and_no_activations():
    layout = mw.Layout(mw.make_mesh("data=2,fsdp=2,tensor=2"), (mw.parallel.match("", "tensor", "fsdp"),))
    table = layout.place(jax.ShapeDtypeStruct((32, 64), jnp.float32))
    ids = jax.ShapeDtypeStruct((512, 16), jnp.int32, sharding=layout.batch_sharding)
    with jax.set_mesh(layout.mesh):
        found = jax.jit(mw.parallel.embedding_lookup).lower(table, ids).compile()
    exchanged = mw.observe.collectives(found.as_text(), layout.mesh)
    assert {(each.kind, each.axes) for each in exchanged} == {
        ("all-gather", ("fsdp",)),
        ("all-reduce", ("tensor",)),  # each device has half of the rows
    }


def test_what_does_not_divide_or_has_no_mesh_is_left_alone():
    x = jnp.ones((3, 2))
    assert mw.parallel.shard_batch_dim(x) is x
    with jax.set_mesh(mw.make_mesh("fsdp=8")):
        assert mw.parallel.shard_batch_dim(x) is x
