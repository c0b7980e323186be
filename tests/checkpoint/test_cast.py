import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.checkpoint import Checkpoints, as_source, cast, open_source, restore
from meshwright.errors import CheckpointError, UsageError


@pytest.fixture
def saved():
    arrays = {
        "params/w": np.array([1.1, 2.2]),
        "params/ids": np.arange(3),
        "opt/m": np.zeros(2),
        "flag": True,
    }
    return as_source({name: np.asarray(array) for name, array in arrays.items()}, "saved")


def dtypes(source):
    return {name: array.dtype.name for name, array in source.arrays().items()}


def test_another_dtype_is_an_error_unless_it_is_asked_for(saved):
    target = {"w": np.zeros(2, "float32"), "ids": np.arange(3)}
    with pytest.raises(CheckpointError, match="params/w: dtype float64 in the checkpoint, float32 wanted"):
        restore(saved, {"params": target}, ignore="opt/.*|flag")
    restored = restore(cast(saved, [("params/w", "float32")]), {"params": target}, ignore="opt/.*|flag")
    assert restored["params"]["w"].tolist() == np.array([1.1, 2.2], "float32").tolist()


def test_a_cast_leaves_numbers_of_another_kind_as_they_are(saved):
    assert dtypes(cast(saved, [(".*", jnp.bfloat16)])) == {
        "params/w": "bfloat16",
        "params/ids": "int64",
        "opt/m": "bfloat16",
        "flag": "bool",
    }


def test_the_first_cast_that_matches_decides(saved):
    found = dtypes(cast(saved, [("params/w", "float32"), ("params/ids", "int32"), (".*", "float16")]))
    assert found == {"params/w": "float32", "params/ids": "int32", "opt/m": "float16", "flag": "bool"}


@pytest.mark.parametrize(
    ("casts", "said"),
    [
        ([("parms/.*", "float32")], "'parms/.*', matches no name"),
        (
            [("params/ids", "float32")],
            "nothing that 'params/ids' matches is of the kind of number that float32 is",
        ),
        ([(".*", "float23")], "there is no dtype 'float23'"),
    ],
)
def test_a_cast_of_nothing_is_an_error(saved, casts, said):
    with pytest.raises(UsageError, match=said):
        cast(saved, casts)


def test_a_run_may_save_its_parameters_in_another_dtype(make_state, tmp_path):
    state, casts = make_state(), [("params/.*", jnp.float16)]
    with Checkpoints(tmp_path, cast=casts) as checkpoints:
        checkpoints.save(7, state)
        restored = checkpoints.resume(state, None, otherwise=lambda: pytest.fail("there is a checkpoint"))
    assert dtypes(open_source(tmp_path)) == {
        "opt_state/0": "float32",
        "opt_state/1": "float32",
        "params/b": "float16",
        "params/w": "float16",
        "step": "int32",
    }
    assert restored["params"]["w"].dtype == jnp.bfloat16
    assert restored["params"]["w"].sharding == state["params"]["w"].sharding
    expected = np.asarray(state["params"]["b"]).astype("float16").astype("float32")
    np.testing.assert_array_equal(restored["params"]["b"], expected)
