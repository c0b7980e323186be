import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import LayoutError
from meshwright.parallel._logical import LOGICAL_AXES

AXES = {"layer/up": ("embed", "mlp"), "layer/q": ("embed", "heads", None), "norm": (None,)}


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def spec(mesh, rule, name, *shape):
    return mw.Layout(mw.make_mesh(mesh), (rule,)).spec(name, struct(*shape))


def test_the_table_says_what_splits_each_logical_axis():
    rule = mw.parallel.logical(AXES)
    assert spec("fsdp=2,tensor=4", rule, "layer/up", 64, 128) == P("fsdp", "tensor")
    assert spec("fsdp=2,tensor=4", rule, "params/layer/q", 64, 8, 16) == P("fsdp", "tensor")
    assert spec("data=8", rule, "layer/up", 64, 128) == P()


def test_what_does_not_divide_is_left_whole():
    assert spec("fsdp=2,tensor=4", mw.parallel.logical(AXES), "layer/q", 64, 1, 16) == P("fsdp")


def test_a_mesh_axis_splits_the_first_dimension_that_asks_for_it():
    rule = mw.parallel.logical({"w": ("mlp", "vocab")})
    assert spec("data=2,tensor=4", rule, "w", 64, 128) == P("tensor")


def test_a_table_of_ones_own_may_give_several_mesh_axes():
    rule = mw.parallel.logical({"w": ("embed", "wide")}, {**LOGICAL_AXES, "wide": ("tensor", "data")})
    assert spec("data=2,tensor=4", rule, "w", 64, 128) == P(None, ("tensor", "data"))


def test_metadata_come_before_what_is_inferred():
    params = {"up": struct(512, 2048), "down": struct(2048, 512)}
    rules = (mw.parallel.logical({"up": ("mlp", "embed")}), mw.infer_rules(params))
    placed = mw.Layout(mw.make_mesh("tensor=8"), rules).shardings(params)
    assert (placed["up"].spec, placed["down"].spec) == (P("tensor"), P("tensor"))


def test_arrays_of_which_no_axis_is_named_are_left_to_other_rules():
    assert mw.parallel.logical(AXES)("norm", struct(64), mw.make_mesh("tensor=8")) is None
    assert mw.parallel.logical(AXES)("other", struct(64), mw.make_mesh("tensor=8")) is None


def test_unknown_logical_axes_are_named_at_once():
    with pytest.raises(LayoutError, match=r"'embedd' of a \(did you mean 'embed'\?\), 'zzz' of b"):
        mw.parallel.logical({"a": ("embedd",), "b": ("zzz", "mlp")})


def test_an_array_of_another_rank_is_an_error_that_names_it():
    with pytest.raises(LayoutError, match=r"layer/up has shape \(64,\), but its logical axes are"):
        spec("tensor=8", mw.parallel.logical(AXES), "layer/up", 64)


def test_the_table_of_arrays_shows_the_logical_axes():
    table = mw.Layout(mw.make_mesh("tensor=8"), (mw.parallel.logical(AXES),)).explain(
        {"layer": {"up": struct(64, 128)}}
    )
    assert "embed × mlp" in table
