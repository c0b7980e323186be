import tracemalloc
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints.formats.readers import written
from checkpoints.test_read import DATA_FILE, chunks_of, flip_a_bit
from meshwright.checkpoints._arrays._diff import diff
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._convert import convert, with_changes
from meshwright.checkpoints._formats._inspect import verify
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import DamagedError, UsageError


@pytest.fixture
def source(save, state):
    return open_source(save(state, extra={"scores": {"loss": 0.5}}))


@pytest.fixture
def to(tmp_path):
    return tmp_path / "converted"


def dtypes(path):
    return {name: array.dtype.name for name, array in open_source(path).arrays().items()}


def test_a_copy_is_equal_and_intact_and_keeps_step_and_extra(source, to):
    made = convert(source, to)
    assert made == to / "step_00000800"
    assert diff(source, open_source(made)) == []
    assert not verify(made).damage
    assert open_source(made).extra == {"scores": {"loss": 0.5}}


def test_a_conversion_has_the_same_chunks(source, to):
    made = convert(source, to)
    cut = {name: array.chunk_shape for name, array in open_source(made).manifest.arrays.items()}
    assert cut == {name: array.chunk_shape for name, array in source.manifest.arrays.items()}


def test_a_dtype_is_that_of_the_parameters(source, to, state):
    made = convert(source, to, dtype="float32")
    assert dtypes(made) == dtypes(str(source)) | {"params/w": "float32"}
    expected = state["params"]["w"].astype(jnp.float32)
    np.testing.assert_array_equal(open_source(made).read("params/w", (slice(None),) * 2), expected)
    assert not verify(made).damage


def test_the_first_pattern_that_matches_decides_and_integers_stay(source, to):
    made = convert(source, to, dtype={"opt_state/1": jnp.float16, "opt_state/.*|step": "bfloat16"})
    assert dtypes(made) == dtypes(str(source)) | {"opt_state/0": "bfloat16", "opt_state/1": "float16"}


def test_only_a_part_is_taken(source, to, state, same_bytes):
    made = convert(source, to, only="params/.*")
    assert same_bytes(restore(open_source(made), {"params": state["params"]})["params"], state["params"])
    assert not verify(made).damage


def test_a_conversion_can_be_resumed_from(source, to, state, same_bytes):
    convert(source, to)
    with Checkpoints(to) as checkpoints:
        assert same_bytes(checkpoints.resume(state, None, otherwise=pytest.fail), state)
    assert checkpoints.resumed == 800


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"only": "parms/.*"}, r"only: 'parms/\.\*' matches no name; the nearest is params/"),
        ({"dtype": {"params": "float32"}}, "dtype: 'params' matches no name"),
        ({"dtype": "int8"}, "int8: it is not a floating-point dtype"),
        ({"dtype": "flaot32"}, "there is no dtype 'flaot32'"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(source, to, how, said):
    with pytest.raises(UsageError, match=said):
        convert(source, to, **how)
    assert not to.exists()


def test_a_number_that_does_not_fit_is_refused_and_leaves_no_trace(save, to):
    source = open_source(save({"params": {"w": np.float32([1, 1e6])}}))
    with pytest.raises(UsageError, match=r"cannot convert params/w to float16: 1e\+06 does not fit"):
        convert(source, to, dtype="float16")
    assert list(to.glob("step_*")) == []


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(-1, "float8_e8m0fnu"), (1e38, "float8_e4m3fn"), (65520, "float16"), (-1e5, "float16")],
)
def test_a_number_that_would_become_infinite_or_none_does_not_fit(number, dtype):
    for wider in (np.float64, np.float32, jnp.bfloat16):
        source = as_source({"params/w": np.array([1, number], wider)}, "x")
        with pytest.raises(UsageError, match=f"cannot convert params/w to {dtype}: .* does not fit"):
            with_changes(source, dtype=dtype).read("params/w", (slice(None),))


def test_infinity_and_nan_stay_what_they_are(save, to):
    source = open_source(save({"params": {"w": np.float32([np.inf, -np.inf, np.nan])}}))
    made = convert(source, to, dtype="bfloat16")
    found = open_source(made).read("params/w", (slice(None),)).astype(np.float32)
    np.testing.assert_array_equal(found, [np.inf, -np.inf, np.nan])


def test_a_step_that_is_there_is_not_overwritten(source, to):
    convert(source, to)
    with pytest.raises(UsageError, match="step_00000800 exists already"):
        convert(source, to)


def test_a_damaged_source_leaves_no_trace(source, to):
    checkpoint = Path(str(source))
    flip_a_bit(checkpoint / DATA_FILE, chunks_of(checkpoint, "params/w")[0][1])
    with pytest.raises(DamagedError, match="cannot read params/w"):
        convert(source, to)
    assert list(to.glob("step_*")) == []


def test_a_conversion_takes_little_memory(save, to):
    source = open_source(save({"params": {"w": np.zeros(16 << 20, np.float32)}}))  # 64 MiB
    tracemalloc.start()
    convert(source, to)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 44 << 20  # two slabs, and the blocks of two threads


@pytest.mark.parametrize("write", [written.safetensors, written.seqax, written.npz])
def test_a_checkpoint_of_another_system_becomes_one_of_ours(write, tmp_path, to):
    source = open_source(write(tmp_path))
    made = convert(source, to)
    assert made.name == ("step_00000007" if source.step else "step_00000000")
    assert diff(source, open_source(made)) == []
    assert set(written.ARRAYS) <= open_source(made).arrays().keys()
    assert open_source(made).writer["converted from"] == source.format
    assert not verify(made).damage


def test_an_integer_stays_one_where_parameters_are_converted(tmp_path, to):
    convert(open_source(written.seqax(tmp_path)), to, dtype="bfloat16")
    kept = {"params/deep": "int32", "step": "int32", "nothing": "float32"}
    assert dtypes(to) == {"params/w": "bfloat16", "params/b": "bfloat16"} | kept


def test_where_nothing_is_called_parameters_all_arrays_are_such(tmp_path, to):
    np.savez(tmp_path / "x.npz", kernel=np.ones(3), count=np.int64(2))
    convert(open_source(tmp_path / "x.npz"), to, dtype="float32")
    assert dtypes(to) == {"kernel": "float32", "count": "int64"}
