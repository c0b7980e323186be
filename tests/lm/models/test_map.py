import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import as_source
from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._models._map import Map, Reshape, Row, Transpose

D, HEADS, HEAD = 6, 2, 4
NAMES = Map(
    (
        Row("embedding", "model.wte.weight"),
        Row("layers/q", "model.h.{}.q.weight", (Transpose(), Reshape((D, HEADS * HEAD), (D, HEADS, HEAD)))),
        Row(("layers/gate", "layers/up"), "model.h.{}.fused", (), (2, 3)),
        Row("blocks/{}/o", "model.h.{}.o.weight", (Transpose(),)),
    ),
    ignore=r".*\.mask",
    prefix="model.",
)


def theirs_of(layers, seed=0):
    random = np.random.default_rng(seed)
    arrays = {"model.wte.weight": random.normal(size=(5, D))}
    for layer in range(layers):
        arrays[f"model.h.{layer}.q.weight"] = random.normal(size=(HEADS * HEAD, D))
        arrays[f"model.h.{layer}.fused"] = random.normal(size=(D, 5))
        arrays[f"model.h.{layer}.o.weight"] = random.normal(size=(HEADS * HEAD, D))
    return arrays


def read(source):
    return {name: np.asarray(array) for name, array in source.arrays().items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@given(st.integers(1, 12), st.integers(0, 9))
def test_there_and_back_is_the_same(layers, seed):
    theirs = theirs_of(layers, seed)
    assert_equal(read(NAMES.to_theirs(NAMES.to_ours(as_source(theirs, "theirs")))), theirs)


def test_layers_are_stacked_split_turned_and_shaped():
    theirs = theirs_of(11)
    ours = read(NAMES.to_ours(as_source(theirs, "theirs")))
    assert {name: x.shape for name, x in ours.items() if "blocks" not in name} == {
        "embedding": (5, D),
        "layers/q": (11, D, HEADS, HEAD),
        "layers/gate": (11, D, 2),
        "layers/up": (11, D, 3),
    }
    np.testing.assert_array_equal(ours["layers/q"][10, :, 1, 2], theirs["model.h.10.q.weight"][6])
    np.testing.assert_array_equal(ours["layers/up"][10], theirs["model.h.10.fused"][:, 2:])
    np.testing.assert_array_equal(ours["blocks/10/o"], theirs["model.h.10.o.weight"].T)


def test_only_what_is_asked_for_is_read():
    reads = []

    def watched(name, x):
        return LazyArray(x.shape, x.dtype, lambda index: reads.append((name, x[index].size)) or x[index])

    theirs = {name: watched(name, x) for name, x in theirs_of(3).items()}
    ours = NAMES.to_ours(as_source(theirs, "theirs")).arrays()
    assert not reads
    np.asarray(ours["layers/gate"][1:, 2:4])
    assert reads == [("model.h.1.fused", 4), ("model.h.2.fused", 4)]


def test_a_prefix_may_be_missing_and_buffers_are_ignored():
    theirs = theirs_of(2)
    short = {name.removeprefix("model."): x for name, x in theirs.items()} | {"h.0.mask": np.ones(3)}
    expected = read(NAMES.to_ours(as_source(theirs, "whole")))
    assert_equal(read(NAMES.to_ours(as_source(short, "short"))), expected)


def test_a_layer_that_is_missing_is_named():
    theirs = theirs_of(3)
    del theirs["model.h.1.fused"]
    with pytest.raises(CheckpointError, match=r"cut has 2 of model.h.\{\}.fused, but number 1 is missing"):
        NAMES.to_ours(as_source(theirs, "cut"))


def test_what_has_no_row_keeps_its_name_there_and_is_refused_back():
    ours = NAMES.to_ours(as_source(theirs_of(2) | {"other": np.ones(1)}, "more"))
    assert "other" in ours.arrays()
    with pytest.raises(CheckpointError, match="no row for other"):
        NAMES.to_theirs(ours)


def test_parts_must_be_there_together_and_fit():
    ours = dict(NAMES.to_ours(as_source(theirs_of(2), "theirs")).arrays())
    del ours["layers/up"]
    with pytest.raises(CheckpointError, match="the same layers for all of layers/gate, layers/up"):
        NAMES.to_theirs(as_source(ours, "half"))
    with pytest.raises(CheckpointError, match="has 7 columns"):
        NAMES.to_ours(as_source({"model.h.0.fused": np.ones((2, 7))}, "wide"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Row(("a", "b"), "c"), "the row of c must have a size for each"),
        (lambda: Row("a", "h.{}.expert.{}"), "the row of h.{}.expert.{} has several {}"),
        (lambda: Row("b/{}/a", "wte"), "the row of wte has a {} only in b/{}/a"),
        (lambda: Map((Row("a", "w"), Row("b", "w"))), "several rows for w"),
        (lambda: Map((Row("a", "v"), Row(("b", "a"), "w", sizes=(1, 2)))), "several rows for a"),
        (lambda: Map((), ignore="*"), "Map.ignore: '*' is not a regular expression: nothing to repeat"),
    ],
)
def test_a_table_that_means_nothing_is_refused_when_it_is_made(make, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("row", "theirs", "message"),
    [
        (Row("a", "w", (Reshape((4,), (2, 2)),)), {"w": np.ones(3)}, r"w: .*\(4,\).*\(3,\)"),
        (Row("a", "w", (Reshape((4,), (2, 2)),)), {"w": np.ones((1, 4))}, r"w: .*\(4,\).*\(1, 4\)"),
        (Row("a", "h.{}.w"), {"h.0.w": np.ones(3), "h.1.w": np.ones(2)}, r"h\.\{\}\.w: cannot stack"),
        (Row(("a", "b"), "w", sizes=(1, 2)), {"w": np.float32(1)}, "w is a scalar"),
        (
            Row("a", "w"),
            {"w": np.ones(3), "a": np.zeros(3)},
            "has a, which has no row, and w, which becomes a",
        ),
    ],
)
def test_arrays_that_do_not_fit_their_row_are_named(row, theirs, message):
    with pytest.raises(CheckpointError, match=message):
        Map((row,)).to_ours(as_source(theirs, "odd"))


@pytest.mark.parametrize(
    ("row", "ours", "message"),
    [
        (Row("a", "w", (Reshape((4,), (2, 2)),)), {"a": np.ones((4, 1))}, r"w: .*\(2, 2\).*\(4, 1\)"),
        (Row("a", "h.{}.w"), {"a": np.float32(1)}, "a is a scalar, not a stack of layers"),
    ],
)
def test_and_so_they_are_on_the_way_back(row, ours, message):
    with pytest.raises(CheckpointError, match=message):
        Map((row,)).to_theirs(as_source(ours, "odd"))


def test_layers_may_lie_along_a_dimension_of_one_array():
    names = Map((Row("w", "scanned", (Transpose(),), layers_dim=1), Row("b/{}", "biases", layers_dim=0)))
    theirs = {"scanned": np.arange(24).reshape(2, 4, 3), "biases": np.arange(8).reshape(4, 2)}
    ours = read(names.to_ours(as_source(theirs, "theirs")))
    assert ours["w"].shape == (4, 3, 2)
    np.testing.assert_array_equal(ours["w"][3], theirs["scanned"][:, 3].T)
    np.testing.assert_array_equal(ours["b/2"], theirs["biases"][2])
    assert_equal(read(names.to_theirs(names.to_ours(as_source(theirs, "theirs")))), theirs)
    with pytest.raises(CheckpointError, match=r"scanned of shape \(5,\) has no dimension 1 for the layers"):
        names.to_ours(as_source({"scanned": np.ones(5)}, "theirs"))
    with pytest.raises(UsageError, match="for one layer and layers_dim for all"):
        Row("w", "h.{}.w", layers_dim=0)


def test_layers_of_several_floating_dtypes_get_one_that_has_all_their_values():
    table = Map((Row("layers/w", "{}.w"),))
    kinds = ("bfloat16", "float32", "float16")
    values = {f"{layer}.w": np.arange(3).astype(kind) / 3 for layer, kind in enumerate(kinds)}
    (found,) = table.to_ours(as_source(values, "theirs")).arrays().values()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.stack([x.astype(np.float32) for x in values.values()]))
    with pytest.raises(CheckpointError, match="cannot stack arrays of 2 kinds"):
        table.to_ours(as_source(values | {"1.w": np.arange(3), "2.w": values["0.w"]}, "theirs"))
