"""What is wanted under one name and saved under another; T5X's assignment maps, case by case."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base._patterns import optional
from meshwright.checkpoints._arrays._restore import restore, restore_lazily
from meshwright.checkpoints._arrays._source import as_source, cast
from meshwright.errors import CheckpointError, UsageError


def source(*names):
    """A source that has a different number under each name."""
    return as_source({name: np.array(float(number)) for number, name in enumerate(names)}, "saved")


def target(*names):
    return dict.fromkeys(names, 0.0)


def test_names_are_mapped_by_the_groups_of_a_pattern():
    saved = as_source({"old/layer_0/w": np.array(1.0), "old/layer_1/w": np.array(2.0)}, "saved")
    wanted = {"layers": [{"w": 0.0}, {"w": 0.0}]}
    restored = restore(saved, wanted, assign=[(r"layers/(\d+)/(.*)", r"old/layer_\1/\2")])
    assert restored == {"layers": [{"w": 1.0}, {"w": 2.0}]}


def test_one_saved_array_may_be_assigned_to_many():
    assert restore(source("a"), target("x", "y"), assign=[(r"x|y", "a")]) == {"x": 0.0, "y": 0.0}


def test_names_may_be_swapped():
    restored = restore(source("a", "b"), target("a", "b"), assign=[("a", "b"), ("b", "a")])
    assert restored == {"a": 1.0, "b": 0.0}


def test_the_first_pattern_that_matches_the_whole_name_decides():
    rules = [("x", "a"), ("x.*", "b")]
    assert restore(source("a", "b"), target("x", "xx"), assign=rules) == {"x": 0.0, "xx": 1.0}


def test_a_name_that_no_pattern_matches_stands_for_itself_also_where_it_is_assigned_elsewhere():
    assert restore(source("a"), target("a", "x"), assign=[("x", "a")]) == {"a": 0.0, "x": 0.0}


def test_none_leaves_a_name_to_the_fallback_and_its_saved_value_unread():
    restored = restore(source("a", "b"), target("a", "b"), assign=[("b", None)], fallback={"b": 1337.0})
    assert restored == {"a": 0.0, "b": 1337.0}


@pytest.mark.parametrize(
    ("assign", "said"),
    [
        ([("encoder", "a")], "^assign: 'encoder' matches no name; there are a, b"),
        ([("a.*", "a"), ("a", "b")], "rule 2, 'a', decides nothing: .* only leaves that rule 1 already took"),
        ([("a", "a"), ("a", "a")], "rule 2, 'a', decides nothing"),
        ([("(", "a")], "'\\(' is not a regular expression: missing \\)"),
        ([("a", r"\1")], r"'\\\\1' does not fit the pattern 'a': invalid group reference"),
    ],
)
def test_a_rule_that_does_nothing_is_an_error(assign, said):
    with pytest.raises(UsageError, match=said):
        restore(source("a", "b"), target("a", "b"), assign=assign)


def test_an_assignment_that_leads_nowhere_is_an_error_whatever_the_fallback():
    with pytest.raises(CheckpointError) as error:
        restore(source("key", "b"), target("x", "b"), assign=[("x", "kye")], fallback=target("x", "b"))
    assert str(error.value).splitlines()[1:] == [
        "  x: assigned kye, which is not in the checkpoint; did you mean key?",
        "  key: in the checkpoint, but not in the target",
    ]


@given(st.permutations("abcde"), st.dictionaries(st.sampled_from("abcde"), st.sampled_from("abcde")))
def test_any_assignment_is_the_dictionary_that_it_says(order, mapping):
    saved, rules = source(*order), [(wanted, name) for wanted, name in mapping.items()]
    got = restore(saved, target(*"abcde"), assign=rules, ignore=".*")
    assert got == {name: float(order.index(mapping.get(name, name))) for name in "abcde"}


def test_nothing_is_read_of_what_is_not_assigned():
    untouched = restore_lazily(source("a", "b"), target("a"), ignore="b")
    assert untouched["a"].shape == ()


def test_a_rule_that_is_said_to_be_optional_need_not_match():
    saved, table = source("body", "head"), [("trunk", "body"), ("tail/(.*)", r"\1"), (".*", None)]
    with pytest.raises(UsageError, match=r"'tail/\(\.\*\)', matches no name"):
        restore(saved, target("trunk"), assign=table, ignore="head")
    lax = [(optional(pattern), name) for pattern, name in table]
    assert restore(saved, target("trunk"), assign=lax, ignore="head") == {"trunk": 0.0}
    half = cast(saved, [(optional("tail/.*"), "float16"), (optional("body"), "int8"), (".*", "float32")])
    assert {name: x.dtype.name for name, x in half.arrays().items()} == {"body": "float64", "head": "float32"}


def test_an_optional_rule_that_leads_nowhere_is_an_error_all_the_same():
    with pytest.raises(CheckpointError, match="trunk: assigned bodies, which is not in the checkpoint"):
        restore(source("body"), target("trunk"), assign=[(optional("trunk"), "bodies")])
