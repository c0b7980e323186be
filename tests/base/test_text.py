import os

import pytest

from meshwright.base._text import aligned, screen_width, shortened, wrapped

ROWS = [
    ("name", "shape", "parameters"),
    ("params/encoder/layers/{12 alike}/attention/query/kernel", "1024 × 1024", "12,582,912"),
    ("params/b", "8", "8"),
]


def test_columns_are_aligned_and_lines_end_with_their_text():
    assert aligned([("a", "1"), ("bcd", "20")], right=(1,)) == ["a     1", "bcd  20"]
    assert aligned([("a", "1"), ("bcd", "")]) == ["a    1", "bcd"]


def test_a_width_takes_from_the_middle_of_the_longest_text_and_never_from_numbers():
    lines = aligned(ROWS, right=(2,), width=60, indent="  ")
    assert max(map(len, lines)) == 60
    assert lines[1].startswith("  params/encoder/l…ion/query/kernel  ")
    assert lines[1].endswith("1024 × 1024  12,582,912")


def test_what_cannot_be_narrower_stays_as_wide_as_it_is():
    assert all(len(line) > 20 for line in aligned(ROWS, right=(2,), width=20)[:2])


def test_a_text_is_shortened_in_the_middle():
    assert shortened("abcdefghij", 5) == "ab…ij"
    assert shortened("abcde", 5) == "abcde"


def test_lines_are_wrapped_at_words_behind_an_indent():
    assert wrapped("one two three\nfour", width=8, indent="  ") == "one two\n  three\nfour"
    assert wrapped("one two three", width=None) == "one two three"


def test_words_are_not_cut_as_they_may_be_paths():
    assert wrapped("see /a/long/path/of-files", width=8) == "see\n/a/long/path/of-files"


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("", None)])
def test_the_width_is_that_of_columns_where_there_is_no_terminal(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError()))
    assert screen_width() == width
