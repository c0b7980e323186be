import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.data._corpus._rows import filled_rows, one_by_one, packed

LENGTHS = st.lists(st.one_of(st.integers(1, 5), st.integers(1, 40), st.integers(1, 300)), max_size=120)


@given(lengths=LENGTHS, row=st.integers(1, 64), pack=st.booleans())
def test_each_token_is_in_one_row_and_no_document_sees_another(lengths, row, pack):
    lengths = np.asarray(lengths, np.int64)
    rows = (packed if pack else one_by_one)(lengths, row)
    tokens = np.arange(lengths.sum()).astype(np.uint32)
    batch = filled_rows(tokens, rows, np.arange(len(rows.first) - 1), row)
    there = batch["segments"] > 0
    assert sorted(batch["tokens"][there].tolist()) == tokens.tolist()
    assert np.array_equal(batch["weights"], there)
    assert not batch["tokens"][~there].any()
    document = np.searchsorted(np.cumsum(lengths), batch["tokens"], side="right")
    for r, segments in enumerate(batch["segments"]):
        for segment in range(1, segments.max(initial=0) + 1):
            here = np.flatnonzero(segments == segment)
            assert np.array_equal(np.diff(here), np.ones(len(here) - 1))
            assert len(set(document[r, here].tolist())) == 1
            assert np.array_equal(batch["positions"][r, here], np.arange(len(here)))
            assert np.array_equal(np.diff(batch["tokens"][r, here]), np.ones(len(here) - 1))


@pytest.mark.parametrize(
    "lengths",
    [
        np.random.default_rng(0).lognormal(5.5, 1.2, 8000).astype(int) + 1,
        np.full(4000, 1300),  # no two go together
        np.random.default_rng(0).integers(900, 1100, 4000),
        np.random.default_rng(0).integers(1, 30, 50_000),
        np.random.default_rng(0).integers(1, 20_000, 300),
    ],
    ids=["as texts are", "two thirds of a row", "half a row", "short", "longer than rows"],
)
def test_rows_are_filled_to_99_percent(lengths):
    rows = packed(lengths, 2048)
    assert lengths.sum() / (2048 * (len(rows.first) - 1)) > 0.99


def test_few_documents_are_cut():
    lengths = np.random.default_rng(0).lognormal(5.5, 1.0, 8000).astype(int) + 1
    rows = packed(lengths, 2048)
    needed = -(-lengths // 2048)
    assert len(rows.starts) - needed.sum() < 0.02 * len(lengths)
