from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base import _tree as tree
from meshwright.errors import UsageError


class Pair(NamedTuple):
    first: int
    second: int


def test_a_leaf_is_called_by_its_path():
    nested = {"layers": [{"q": 1}, {"q": 2}], "pair": Pair(3, 4)}
    assert tree.named_leaves(nested) == {"layers/0/q": 1, "layers/1/q": 2, "pair/first": 3, "pair/second": 4}


def test_what_has_no_leaves_is_known_by_its_path():
    held = {"a": None, "b": {"c": {}, "d": (), "e": [((), 1)]}, "f": {"spec": None}}
    found = tree.empty_nodes(held, is_leaf=lambda node: isinstance(node, dict) and "spec" in node)
    assert found == {"a": None, "b/c": {}, "b/d": {}, "b/e/0/0": {}}
    assert tree.empty_nodes(1) == {}


def test_a_tree_that_is_a_leaf_has_the_empty_name():
    assert tree.leaf_names(7) == [""]


def dictionaries(part):
    return st.dictionaries(st.text(max_size=3), part, min_size=1, max_size=3)


@given(st.recursive(st.integers(), dictionaries))
def test_no_two_leaves_share_a_name(nested):
    assert len(set(tree.leaf_names(nested))) == len(jax.tree.leaves(nested))


class Alike:
    """A key that reads like others of its class."""

    def __init__(self, number):
        self.number = number

    def __lt__(self, other):
        return self.number < other.number

    def __repr__(self):
        return "same"


def test_two_leaves_that_would_have_one_name_are_refused_wherever_names_are_made():
    both = {"layer": {Alike(0): 1, Alike(1): 2}, "w": 3}
    for make in (tree.leaf_names, tree.named_leaves, lambda each: tree.map_named(lambda name, x: x, each)):
        with pytest.raises(UsageError, match=r"two leaves are called layer/same: \['layer'\]\[same\] and"):
            make(both)


@given(dictionaries(st.recursive(st.integers(), dictionaries)))
def test_dictionaries_can_be_put_together_again_from_names(whole):
    assert tree.nested(tree.named_leaves(whole)) == whole


def test_map_named_gives_each_leaf_its_name():
    assert tree.map_named(lambda name, x, y: f"{name}{x}{y}", {"a": 1}, {"a": 2}) == {"a": "a12"}


def test_an_abstract_tree_keeps_shapes_dtypes_and_shardings():
    x = jnp.ones((2, 3))
    found = tree.abstract({"x": x, "n": np.float32(1)})
    assert found["x"].sharding == x.sharding
    assert (found["n"].shape, found["n"].dtype) == ((), np.float32)


def test_differences_are_told_by_name_with_the_dtypes_that_jax_makes():
    then = {"same": np.ones(2), "shape": np.ones(3), "dtype": np.ones(1), "gone": np.ones(1)}
    now = {"same": jnp.ones(2), "shape": np.ones(4), "dtype": np.ones(1, np.int64)}
    assert tree.differences(then, then) == ""
    assert tree.differences(then, now).split("; ") == [
        "dtype was float32[1], is int32[1]",
        "gone was float32[1], is missing",
        "shape was float32[3], is float32[4]",
    ]


def test_nbytes_counts_all_leaves():
    assert tree.nbytes({"a": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.zeros((), jnp.int32)}) == 16
