"""The rows of a batch that make a step not finite are found by trying, and told as all only if they are."""

import numpy as np
import pytest

from meshwright.debug._first_nan import FirstNan
from meshwright.debug._steps import guilty_rows


def guilty(rows, size):
    marked = np.isin(np.arange(size), rows)
    return guilty_rows(lambda batch: bool(batch.any()), marked)


@pytest.mark.parametrize("rows", [[3], [0, 1, 7], [*range(40, 60)]])
def test_a_few_rows_are_found_and_told_as_all(rows):
    assert guilty(rows, 512) == (rows, True)


def test_more_rows_than_can_be_tried_are_not_told_as_all():
    odd = [*range(1, 512, 2)]
    rows, are_all = guilty(odd, 512)
    assert rows == odd[: len(rows)]
    assert 0 < len(rows) < len(odd)
    assert not are_all


def test_rows_that_only_do_it_together_are_none():
    batch = np.array([1, 0, 0, 0, 0, 0, 0, 2])
    assert guilty_rows(lambda batch: {1, 2} <= set(batch.tolist()), batch) == (None, True)


@pytest.mark.parametrize(("are_all", "told"), [(True, "  rows 1, 3 of"), (False, "  at least rows 1, 3 of")])
def test_what_may_be_a_part_of_the_rows_is_told_as_that(are_all, told):
    assert told in str(explained(rows=[1, 3], are_all_rows=are_all))


def test_that_no_row_does_it_is_told_of_all_rows_only_if_all_were_tried():
    assert "does it alone among those" in str(explained(rows=None, are_all_rows=False))
    assert "does it alone among those" not in str(explained(rows=None, are_all_rows=True))


def explained(**rows):
    given = {"wrong": ["loss"], "chain": [], "examples": [], "devices": {}, "batch": "b.npz", "arrays": {}}
    return FirstNan(step=7, begun_at=6, batch_size=8, **given, **rows)
