import pytest

from meshwright.base._files import DEEPEST, check_depth, parse_json, parse_object
from meshwright.errors import MeshwrightError, UsageError, printable


@pytest.mark.parametrize(
    "content", [b"{", b"\xff", b"[]", b"[" * 100_000, b"7" * 5000, b'{"a":' * 500 + b"1" + b"}" * 500]
)
def test_what_is_no_object_of_json_is_one_kind_of_error(content):
    with pytest.raises(ValueError):  # noqa: PT011 - whoever reads a file says which
        parse_object(content)


@pytest.mark.parametrize("content", ['{"a": 1, "b": 2, "a": 3}', b'[{"deep": {"a": 1, "a": 1}}]'])
def test_a_key_that_an_object_has_twice_is_an_error_and_not_passed_over(content):
    with pytest.raises(ValueError, match="an object has the key 'a' twice"):
        parse_json(content)


def test_what_programs_write_is_not_nested_too_deeply():
    value = 1
    for _ in range(DEEPEST - 1):
        value = [value]
    check_depth({"a": [1, {"b": None}]})
    check_depth(value)
    with pytest.raises(ValueError, match="nested more than"):
        check_depth([[value]])


def test_what_a_terminal_obeys_is_shown_and_not_sent():
    text = "\x1b]0;owned\x07\x9b2J\u202e\ud800\u2028 größe 層\n\tx"
    assert printable(text) == "\\x1b]0;owned\\x07\\x9b2J\\u202e\\ud800\\u2028 größe 層\n\tx"
    assert printable("a\nb", keep="") == "a\\nb"
    assert str(UsageError("\x1b[2J")) == str(MeshwrightError("\\x1b[2J"))
