"""What a pattern over the names of leaves means, and which tables of them are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.base._patterns import Table, compiled, judge, value_of
from meshwright.errors import UsageError

KEYS = st.text("ab.%\n", max_size=2)
NAMES = st.lists(KEYS, min_size=1, max_size=4).map("/".join)
PATTERNS = st.text(r"ab./*|()?", max_size=6).filter(lambda text: is_regular(text))


def is_regular(text):
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def endings(name):
    """A name, and its last components, the most of them first."""
    keys = name.split("/")
    return ["/".join(keys[start:]) for start in range(len(keys))]


def specified(pattern, name):
    """The match of a pattern, written down plainly."""
    return next(filter(None, (re.fullmatch(pattern, ending) for ending in endings(name))), None)


@given(PATTERNS, NAMES)
def test_a_pattern_matches_a_whole_name_or_its_last_components_with_its_own_groups(pattern, name):
    found, expected = compiled(pattern)(name), specified(pattern, name)
    assert (found is None) == (expected is None)
    assert found is None or found.groups() == expected.groups()


@given(PATTERNS, NAMES)
def test_a_pattern_that_is_held_to_the_beginning_is_for_whole_names(pattern, name):
    assert bool(compiled(f"^(?:{pattern})")(name)) == bool(re.fullmatch(pattern, name))


@given(st.lists(PATTERNS, max_size=4), st.lists(NAMES, max_size=4, unique=True))
def test_refused_is_a_table_of_which_a_rule_is_the_first_to_match_no_leaf(patterns, names):
    firsts = [
        [number for number, pattern in enumerate(patterns) if specified(pattern, name)] for name in names
    ]
    idle = set(range(len(patterns))) - {numbers[0] for numbers in firsts if numbers}
    if patterns and patterns[-1] == ".*":
        idle.discard(len(patterns) - 1)
    tables = {Table("rules", tuple(patterns)): names}
    if not idle:
        judge(tables)
        return
    with pytest.raises(UsageError) as error:
        judge(tables)
    assert str(error.value).count("rules: ") == len(idle)


@given(st.lists(PATTERNS, max_size=4), st.lists(NAMES, max_size=4))
def test_optional_rules_are_never_refused_and_decide_all_the_same(patterns, names):
    optional = [mw.parallel.optional(pattern) for pattern in patterns]
    judge({Table("rules", tuple(optional)): names})
    for name in names:
        assert Table("", tuple(optional)).first(name) is None or value_of(
            list(zip(optional, range(4), strict=False)), name, None
        ) == next(number for number, pattern in enumerate(patterns) if specified(pattern, name))


def test_the_last_components_are_whole_ones():
    matches = compiled("layers/.*/q|k")
    assert matches("params/layers/0/q")
    assert matches("k")
    assert not matches("params/layers/0/k_scale")
    assert not matches("params/risk")


def test_flags_stand_at_the_beginning_as_python_has_them():
    assert compiled("(?i)KERNEL")("params/kernel")
    assert not compiled("KERNEL")("params/kernel")


def test_an_error_counts_the_characters_of_the_pattern_itself():
    with pytest.raises(UsageError, match=r"^norms: 'ab\(' is not a regular expression: .* at position 2\.$"):
        Table("norms", ("ab(",))


TAKEN = "decides nothing: it matches only leaves that"
NAMES_OF_A_MODEL = ["params/encoder/0/w", "params/encoder/0/norm/scale", "params/head/w"]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["encodr/.*"], "rules: 'encodr/.*' matches no name; the nearest is params/encoder/0/w."),
        (
            ["nrom/.*", ".*"],
            "rules: rule 1, 'nrom/.*', matches no name; the nearest is " + NAMES_OF_A_MODEL[1] + ".",
        ),
        (["parms/head/.*"], "rules: 'parms/head/.*' matches no name; the nearest is params/head/w."),
        (["zzz"], f"rules: 'zzz' matches no name; there are {', '.join(NAMES_OF_A_MODEL)}."),
        (["w", "head/w"], f"rules: rule 2, 'head/w', {TAKEN} rule 1 already took."),
        (
            ["head/w", "w", "scale", ".*/[ws].*", ".*"],
            f"rules: rule 4, '.*/[ws].*', {TAKEN} rules 1, 2, 3 already took.",
        ),
        ([".*", "w"], f"rules: rule 2, 'w', {TAKEN} rule 1 already took."),
    ],
)
def test_why_a_rule_decides_nothing_is_told_with_the_nearest_name(patterns, said):
    with pytest.raises(UsageError) as error:
        judge({Table("rules", tuple(patterns)): NAMES_OF_A_MODEL})
    assert str(error.value).splitlines()[0] == said


def test_all_rules_of_all_tables_that_decide_nothing_are_listed():
    tables = {Table("rules", ("a", "w", "b")): NAMES_OF_A_MODEL, Table("norms", ("c",)): ["params/w"]}
    with pytest.raises(UsageError) as error:
        judge(tables)
    *lines, hint = str(error.value).splitlines()
    told = [line.partition(" matches")[0] for line in lines]
    assert told == ["rules: rule 1, 'a',", "rules: rule 3, 'b',", "norms: 'c'"]
    assert hint.endswith("write mw.parallel.optional('a').")


def test_a_table_of_which_there_are_no_leaves_is_refused_unless_it_is_for_the_rest():
    with pytest.raises(UsageError, match=r"norms: 'w' matches no name; there are none\."):
        judge({Table("norms", ("w",)): []})
    judge({Table("norms", (".*",)): [], Table("rules", ()): []})


def test_a_leaf_may_be_called_by_another_name_too():
    judge({Table("cast", ("encoder/w",)): ["encoder.w"]}, also=lambda name: name.replace(".", "/"))
