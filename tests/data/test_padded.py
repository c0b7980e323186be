import numpy as np
import pytest

import meshwright as mw
from meshwright.data._padded import numbered_batches
from meshwright.errors import ExamplesError

SHARDING = mw.Layout(mw.make_mesh("data=2,tensor=4")).batch_sharding
ROWS = [{"id": i} for i in range(10)]
KINDS = {"arrays": {"id": np.arange(10)}, "a list": ROWS, "an iterator factory": lambda: iter(ROWS)}


@pytest.mark.parametrize("kind", KINDS)
def test_padded_batches_count_every_example_once(kind):
    batches = list(mw.data.padded_batches(KINDS[kind], 4, SHARDING))
    counted = [i for batch, weights in batches for i, w in zip(batch["id"], weights, strict=True) if w]
    assert counted == list(range(10))
    assert all(len(batch["id"]) == len(weights) == 4 for batch, weights in batches)


@pytest.mark.parametrize("kind", KINDS)
def test_numbered_batches_say_which_rows_are_examples(kind):
    found = {}
    for batch, ids in numbered_batches(KINDS[kind], 4, SHARDING):
        found |= dict(zip(ids, batch["id"][: len(ids)].tolist(), strict=True))
        assert len(batch["id"]) == 4
    assert found == {i: i for i in range(10)}


def test_collate_sees_whole_batches_only():
    sizes = []
    collate = lambda examples: sizes.append(len(examples)) or {"id": np.array([x["id"] for x in examples])}
    last, ids = list(numbered_batches(ROWS, 4, SHARDING, collate=collate))[-1]
    assert last["id"].tolist() == [8, 9, 9, 9]
    assert (ids, sizes) == (range(8, 10), [4, 4, 4])


NONE = {"arrays": {"id": np.zeros(0)}, "a list": [], "an iterator factory": lambda: iter(())}


@pytest.mark.parametrize("kind", NONE)
def test_of_no_examples_there_are_no_batches_and_no_evaluation(kind):
    assert list(numbered_batches(NONE[kind], 4, SHARDING)) == []
    with pytest.raises(ExamplesError, match="there are no examples to evaluate on"):
        list(mw.data.padded_batches(NONE[kind], 4, SHARDING))
