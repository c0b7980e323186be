import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._arrays._source import as_source, cast
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, MeshwrightError, UsageError


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
    with pytest.raises(
        CheckpointError, match="params/w: dtype float64 in the checkpoint, float32 in the target"
    ):
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
        ([("parms/.*", "float32")], "'parms/.*' matches no name"),
        (
            [("params/ids", "float32")],
            "'params/ids' matches no array that can be cast to float32",
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


TOO_LARGE = {"float32": 1e9, "int32": 300, "complex128": 1e300j}
KINDS = {"float32": "float16", "int32": "int8", "complex128": "complex64"}


def refusing(dtype):
    shown = {"float32": r"1e\+09", "int32": "300", "complex128": r".*1e\+300j?"}[dtype]
    return pytest.raises(UsageError, match=f"cannot convert x to {KINDS[dtype]}: {shown} does not fit")


@pytest.mark.parametrize(("dtype", "number"), TOO_LARGE.items())
def test_a_number_that_does_not_fit_is_refused_while_it_is_read(dtype, number):
    held = np.array([1, 0, number], dtype)
    source = cast(as_source({"x": held}, "x"), [("x", KINDS[dtype])])
    assert source.read("x", (slice(2),)).tolist() == [1, 0]
    with refusing(dtype):
        restore(source, {"x": np.zeros(3, KINDS[dtype])})
    with pytest.raises(UsageError, match="cannot convert an array to"):
        np.asarray(as_source({"x": held}, "x").arrays()["x"].astype(KINDS[dtype]))


def places(mesh):
    """Return functions that put an array where a state may have it."""
    return {
        "devices": lambda x: jax.device_put(x, NamedSharding(mesh, P("data"))),
        "the host's memory": lambda x: jax.device_put(x, NamedSharding(mesh, P(), memory_kind="pinned_host")),
        "numpy": lambda x: x,
        "lazy": lambda x: as_source({"x": x}, "x").arrays()["x"],
    }


def save_and_wait(checkpoints, step, state):
    checkpoints.save(step, state)
    checkpoints.wait()


@pytest.mark.parametrize("where", ["devices", "the host's memory", "numpy", "lazy"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_number_that_does_not_fit_is_refused_by_a_save_and_nothing_is_lost(where, dtype, mesh, tmp_path):
    put = places(mesh)[where]
    with Checkpoints(tmp_path, cast=[("x", KINDS[dtype])]) as checkpoints:
        checkpoints.save(1, {"x": put(np.array([1, 0], dtype))})
        with pytest.raises(MeshwrightError, match=f"cannot convert x to {KINDS[dtype]}: .* does not fit"):
            save_and_wait(checkpoints, 2, {"x": put(np.array([1, TOO_LARGE[dtype]], dtype))})
        checkpoints.save(3, {"x": put(np.array([1, 2], dtype))})
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_00000001", "step_00000003"]


@pytest.mark.parametrize("where", ["devices", "the host's memory", "numpy", "lazy"])
def test_what_is_not_finite_already_is_saved_as_it_is(where, mesh, tmp_path):
    held = np.array([np.inf, -np.inf, np.nan, 7], np.float32)
    with Checkpoints(tmp_path, cast=[("x", "float16")]) as checkpoints:
        checkpoints.save(1, {"x": places(mesh)[where](held)})
    np.testing.assert_array_equal(np.asarray(open_source(tmp_path).arrays()["x"]), held.astype(np.float16))


def test_a_number_of_python_and_a_dtype_without_nan_are_judged_alike(tmp_path):
    refused = pytest.raises(UsageError, match=r"cannot convert x to float16: 1e\+09 does not fit")
    with Checkpoints(tmp_path, cast=[("x", "float16")]) as checkpoints, refused:
        checkpoints.save(1, {"x": 1e9})
    with pytest.raises(UsageError, match="float4_e2m1fn: it has no NaN"):
        Checkpoints(tmp_path, cast=[("x", "float4_e2m1fn")]).check({"x": 1.0})


@pytest.mark.parametrize(
    ("held", "dtype"),
    [(np.uint32([3 << 30]), "int32"), (np.int8([-1]), "uint8"), (np.int64([-1]), "uint64")],
)
def test_whole_numbers_of_another_sign_do_not_fit(held, dtype):
    with pytest.raises(UsageError, match="does not fit"):
        np.asarray(cast(as_source({"x": held}, "x"), [("x", dtype)]).arrays()["x"])


def test_the_narrowest_whole_numbers_are_cast():
    held = np.array([-8, 7], jnp.int4)
    source = cast(as_source({"x": held}, "x"), [("x", "int8")])
    assert np.asarray(source.arrays()["x"]).tolist() == [-8, 7]
    back = cast(source, [("x", jnp.int4)])
    assert np.asarray(back.arrays()["x"]).astype(int).tolist() == [-8, 7]
