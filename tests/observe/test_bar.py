import sys

import pytest

from meshwright.observe._console import Bar


class Unasked:
    def __float__(self):
        raise AssertionError("it was fetched for nobody to see")


@pytest.mark.parametrize("shown", [True, False])
def test_where_nothing_can_be_redrawn_nothing_is_shown_or_fetched(capsys, shown):
    bar = Bar(range(3), 3, "Predicting", visible=shown)
    for _ in bar:
        bar.set_postfix(loss=Unasked())
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_it_tells_how_far_it_is_and_what_is_beside_it(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)
    bar, taken = Bar(iter("abc"), 3, "Training"), []
    for item in bar:
        taken.append(item)
        bar.set_postfix(loss=0.25)
    assert taken == ["a", "b", "c"]
    assert "Training loss 0.25" in terminal.getvalue()
    assert "100%" in terminal.getvalue()


def test_the_items_are_closed_with_it(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)
    closed = []

    def items():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    bar = Bar(items(), None, "Reading")
    next(bar)
    del bar
    assert closed == [True]
