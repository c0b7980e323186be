"""Numbers and times as text."""

import pytest

from meshwright.base._internal import seconds_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (120.0, "120 s"),
        (1.5, "1.5 s"),
        (0.25, "250 ms"),
        (2.4e-5, "24 µs"),
        (4e-10, "under 1 µs"),
        (0.0, "0 µs"),
    ],
)
def test_times_are_told_in_units_of_their_size(value, text):
    assert seconds_text(value) == text
