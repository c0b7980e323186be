import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.engine._predict._outputs import Outputs
from meshwright.errors import UsageError

LINES = [json.dumps({"id": i, "text": "é" * (i % 3)}) + "\n" for i in range(30)]
ABOUT = {"parameters": "0123abcd"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("outputs")


@given(
    st.integers(0, len("".join(LINES))), st.integers(1, 40), st.sampled_from([b"", b"\0" * 9, b"\0\n\0\n"])
)
def test_what_is_kept_is_whole_batches_as_they_were_written(folder, size, batch_size, rest):
    path, whole = folder / "preds.jsonl", "".join(LINES).encode()
    for old in folder.iterdir():
        old.unlink()
    assert Outputs(path, ABOUT).begin(batch_size) == 0
    (folder / "preds.jsonl.part").write_bytes(whole[:size] + rest)  # killed, or the machine went down
    again = Outputs(path, ABOUT)
    start = again.begin(batch_size)
    assert start == whole[:size].count(b"\n") // batch_size * batch_size
    again.append(json.loads(line) for line in LINES[start:])
    again.finish()
    assert path.read_bytes() == whole
    assert again.begin(batch_size) is None


def test_arrays_and_their_numbers_are_json(tmp_path):
    output = {
        "a": np.ones((1, 2), np.int8),
        "b": np.float32(0.5),
        "c": jnp.ones(2, jnp.bfloat16),
        "d": [np.True_],
    }
    file = Outputs(tmp_path / "preds.jsonl", ABOUT)
    file.begin(1)
    file.append([output, None])
    file.finish()
    assert (tmp_path / "preds.jsonl").read_text() == (
        '{"a": [[1, 1]], "b": 0.5, "c": [1.0, 1.0], "d": [true]}\nnull\n'
    )


@pytest.mark.parametrize("output", [b"bytes", {1, 2}, object()], ids=type)
def test_what_json_cannot_hold_is_refused(tmp_path, output):
    file = Outputs(tmp_path / "preds.jsonl", ABOUT)
    file.begin(1)
    with pytest.raises(
        UsageError, match=f"JSON cannot hold an output that contains a value of type {type(output).__name__}"
    ):
        file.append([{"deep": [output]}])


def test_what_was_lost_with_the_machine_is_not_taken_for_ours(tmp_path):
    Outputs(tmp_path / "preds.jsonl", ABOUT).begin(1)
    (tmp_path / "preds.jsonl.about").write_text("")
    with pytest.raises(UsageError, match=r"preds.jsonl.part already holds other predictions"):
        Outputs(tmp_path / "preds.jsonl", ABOUT).begin(1)
