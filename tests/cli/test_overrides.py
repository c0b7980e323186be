from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import pytest

from meshwright.cli._overrides import build, convert
from meshwright.cli._settings import split
from meshwright.errors import OverrideError, UsageError


@dataclass(frozen=True)
class Inner:
    when: int | Callable[[int], bool] = 5
    size: int = 8

    def __post_init__(self):
        if self.size < 1:
            raise UsageError(f"Inner.size is {self.size}; it must be at least 1.")


@dataclass(frozen=True)
class Outer:
    rate: float
    name: str = "run"
    inner: Inner = Inner()
    parts: dict[str, Inner] = field(default_factory=lambda: {"a": Inner()})


def make(rate: float = 1.0, layers: int = 2, mesh=None) -> Outer:
    return Outer(rate * layers)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "m:f", "rate=2", "max_steps=3", "--json"],
        ["train", "m:f", "--json", "--rate", "2", "--max-steps=3"],
        ["train", "--rate=2", "m:f", "max_steps=3", "--json"],
    ],
)
def test_settings_are_told_from_options_in_both_dialects(words):
    rest, settings = split(words, {"--json"})
    assert rest == [word for word in words if word in ("train", "m:f", "--json")]
    assert settings == {"rate": "2", "max_steps": "3"}


def test_what_follows_a_double_dash_is_left_alone():
    words = ["launch", "-n", "2", "--", "prog", "--a", "b=c"]
    assert split(words, {"-n"}) == (words, {})


def test_an_option_without_a_value_is_refused():
    with pytest.raises(OverrideError, match="--rate is not an option; as a setting it needs a value"):
        split(["train", "--rate", "--json"], {"--json"})


def test_the_functions_parameters_come_first_then_the_fields_of_what_it_returns():
    made = build(
        make, {"layers": "3", "rate": "1e-1", "name": "other", "inner.size": "4", "parts.a.when": "7"}, Outer
    )
    assert made == Outer(pytest.approx(0.3), "other", Inner(size=4), {"a": Inner(when=7)})


@pytest.mark.parametrize(
    ("text", "wanted", "value"),
    [
        ("1e-4", float, 1e-4),
        ("1e6", int, 1_000_000),
        ("none", float | None, None),
        ("[100,200]", tuple[int, ...], (100, 200)),
        ("[1e-3, 1e-4]", tuple[float, ...], (1e-3, 1e-4)),
        ("yes", bool, True),
        ("none", int | None, None),
        ("none", str | None, None),
        ("none", str, "none"),
        ("2,4", tuple[int, ...], (2, 4)),
        ("[2, 4]", list[int], [2, 4]),
        ("{a: 1}", dict[str, int], {"a": 1}),
        ("bf16", Literal["fp32", "bf16"], "bf16"),
        ("data=-1,fsdp=4", str, "data=-1,fsdp=4"),
    ],
)
def test_a_text_becomes_what_is_wanted(text, wanted, value):
    assert convert("name", text, wanted) == value


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lyers": "3"}, "unknown setting 'lyers'. Did you mean 'layers'"),
        ({"inner.sise": "3"}, "unknown setting 'inner.sise'. Did you mean 'size'"),
        ({"parts.b.size": "3"}, "unknown setting 'parts.b'"),
        ({"layers": "many"}, "layers=many: expected int, found 'many'"),
        ({"inner.size": "0"}, "^inner.size=0: Inner.size is 0; it must be at least 1"),
        ({"parts.a.size": "0"}, "^parts.a.size=0: Inner.size is 0"),
        ({"parts.a": "0"}, "parts.a=0: expected Inner, found '0'"),
        ({"inner.when": "x"}, "inner.when=x: expected int or a function, found 'x'"),
        ({"inner.when": "3", "inner": "x"}, "both inner and a part of it are set"),
        ({"inner": "x", "inner.when": "3"}, "both inner and inner.when are set"),
        ({"name.first": "x"}, "unknown setting 'name.first'"),
        ({"mesh.first": "x"}, "unknown setting 'mesh.first'"),
    ],
)
def test_a_setting_that_fits_nothing_is_refused_in_words(settings, says):
    with pytest.raises(UsageError, match=says):
        build(make, settings, Outer)


def test_a_setting_with_a_few_values_names_them():
    with pytest.raises(UsageError, match=r"base=int3: expected 'int8' or 'nf4' or none, found 'int3'"):
        convert("base", "int3", Literal["int8", "nf4"] | None)


def test_settings_of_one_dataclass_are_made_at_once():
    @dataclass(frozen=True)
    class Even:
        whole: int = 4
        half: int = 2

        def __post_init__(self):
            if self.whole != 2 * self.half:
                raise ValueError("not the half")

    assert build(Even, {"whole": "6", "half": "3"}, Even) == Even(6, 3)
    assert build(lambda: Even(), {"whole": "6", "half": "3"}, Even) == Even(6, 3)
    with pytest.raises(UsageError, match="not the half"):
        build(lambda: Even(), {"whole": "6"}, Even)


def test_a_parameter_that_is_a_dataclass_or_a_mapping_can_be_set_in_part():
    def made(inner: Inner = Inner(size=2), options: dict[str, float] = {"a": 1.0, "b": 2.0}):  # noqa: B006
        return Outer(options["a"], inner=inner)

    found = build(made, {"inner.when": "9", "options.a": "1e-3"}, Outer)
    assert found == Outer(1e-3, inner=Inner(when=9, size=2))


def test_unknown_names_are_refused_before_the_function_is_called():
    def costly() -> Outer:
        raise AssertionError("called")

    with pytest.raises(OverrideError):
        build(costly, {"nothing": "1"}, Outer)


def test_a_function_that_returns_something_else_is_refused():
    with pytest.raises(UsageError, match="returned int, not Outer"):
        build(lambda: 3, {}, Outer)
