import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.parallel._mesh_rules import apply_mesh_rules, hardware, mesh_rule

H100 = "NVIDIA H100 80GB HBM3:64x8"


@dataclass(frozen=True)
class Fake:
    process_index: int
    device_kind: str = "cpu"
    platform: str = "cpu"
    slice_index: int | None = None


@dataclass(frozen=True)
class Inner:
    size: int = 8
    parts: int = 2

    def __post_init__(self):
        if self.size % self.parts:
            raise UsageError("parts does not divide size")


@dataclass(frozen=True)
class Described:
    mesh: str = "data=-1"
    microbatches: int = 1
    inner: Inner = Inner()
    named: Mapping[str, Inner] = field(default_factory=lambda: {"a": Inner(), "b": Inner()})

    def __post_init__(self):
        if self.microbatches < 1:
            raise UsageError("microbatches is less than 1")


def test_this_machine_is_named_by_kind_and_number():
    assert hardware() == "cpu:8"


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        ([Fake(i // 4, "TPU v5 lite", "tpu", slice_index=0) for i in range(64)], "TPU v5 lite:16x4"),
        ([Fake(i, "NVIDIA H100", "gpu", slice_index=i // 8) for i in range(16)], "NVIDIA H100:2x8"),
        ([Fake(0), Fake(0), Fake(1), Fake(1)], "cpu:2x2"),
        ([Fake(0), Fake(0), Fake(1)], "cpu:2+1"),
    ],
    ids=["TPU slice of 16 hosts", "one process per GPU", "processes", "unequal processes"],
)
def test_hardware_counts_hosts_and_devices(devices, name):
    assert hardware(devices) == name


def test_the_first_rule_that_matches_stands():
    rules = [
        ("cpu.*", mw.parallel.override(microbatches=2)),
        ("NVIDIA H100.*|TPU.*", mw.parallel.override(microbatches=4)),
    ]
    rules.append((".*", mw.parallel.override(mesh="fsdp=-1")))
    assert apply_mesh_rules(Described(), rules, H100) == Described(microbatches=4)


def test_a_pattern_must_match_the_whole_string():
    assert mesh_rule([("NVIDIA H100", mw.parallel.override())], H100) is None


def test_matched_and_left_alone_is_not_unmatched():
    left_alone = ("NVIDIA.*", mw.parallel.override())
    assert mesh_rule([left_alone], H100) == left_alone
    assert (
        apply_mesh_rules(Described(), [left_alone, (".*", mw.parallel.override(microbatches=9))], H100)
        == Described()
    )


def test_without_a_match_the_description_is_the_same_object():
    value = Described()
    assert apply_mesh_rules(value, [("TPU.*", mw.parallel.override(microbatches=2))], H100) is value
    assert apply_mesh_rules(value, [], H100) is value


def test_an_edit_sets_a_field_to_none():
    assert apply_mesh_rules(Described(), [(".*", mw.parallel.override(mesh=None))], H100).mesh is None


def test_unknown_fields_of_any_rule_are_all_named_with_the_nearest():
    rules = [
        ("TPU.*", mw.parallel.override(microbatch=2)),
        ("cpu.*", mw.parallel.override(mehs="fsdp=8", q=1)),
    ]
    with pytest.raises(UsageError) as refused:
        apply_mesh_rules(Described(), rules, H100)
    near = ("'microbatch' (did you mean 'microbatches'?)", "'mehs' (did you mean 'mesh'?)", "no field 'q'.")
    for words in ("'TPU.*'", "'cpu.*'", *near):
        assert words in str(refused.value)


def test_a_value_that_cannot_be_is_refused_by_the_description_itself():
    with pytest.raises(UsageError, match="less than 1"):
        mw.parallel.override(microbatches=0)(Described())


def test_a_pattern_that_cannot_be_read_is_refused_whether_or_not_it_is_reached():
    with pytest.raises(UsageError, match=r"'\(TPU' is not a regular expression"):
        mesh_rule([(".*", mw.parallel.override()), ("(TPU", mw.parallel.override())], H100)


def test_settings_of_settings_are_changed_by_dotted_paths_all_at_once():
    change = mw.parallel.override({"inner.size": 9, "inner.parts": 3, "named.b.size": 4}, microbatches=2)
    expected = Described(microbatches=2, inner=Inner(9, 3), named={"a": Inner(), "b": Inner(4)})
    assert change(Described()) == expected


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("inner.siz", r"Inner has no field 'siz' \(in 'inner.siz'\) \(did you mean 'size'\?\)"),
        ("named.c.size", r"dict has no field 'c' \(in 'named.c.size'\).\n  It has: a, b\."),
        ("mesh.size", r"str has no field 'size' \(in 'mesh.size'\).\n  mesh has no settings\."),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path, message):
    with pytest.raises(UsageError, match=message):
        mw.parallel.override({path: 1})(Described())


def test_a_setting_and_a_part_of_it_are_not_both_changed():
    with pytest.raises(UsageError, match="both 'inner' and a setting inside it"):
        mw.parallel.override({"inner.size": 4}, inner=Inner())(Described())


def test_an_edit_cannot_be_changed():
    with pytest.raises(TypeError):
        mw.parallel.override(mesh="fsdp=8").changes["mesh"] = "data=8"


@given(st.lists(st.sampled_from(["cpu.*", "cpu:8", "cpu", ".*", "TPU.*", "", "[a-z]+:8"]), max_size=5))
def test_the_choice_is_the_first_full_match(patterns):
    rules = [(pattern, mw.parallel.override(microbatches=i + 1)) for i, pattern in enumerate(patterns)]
    matching = [rule for rule in rules if re.fullmatch(rule[0], "cpu:8")]
    assert mesh_rule(rules, "cpu:8") == (matching[0] if matching else None)
