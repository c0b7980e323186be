import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._formats._export_npz import export_npz
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import UsageError

STATE = {"params": {"w": np.arange(12.0).reshape(3, 4), "none": np.zeros((0, 2))}, "step": np.int32(7)}


def test_numpy_loads_what_is_written(tmp_path):
    assert export_npz(STATE, tmp_path / "x") == tmp_path / "x.npz"
    with np.load(tmp_path / "x.npz") as file:
        assert sorted(file) == ["params/none", "params/w", "step"]
        assert np.array_equal(file["params/w"], STATE["params"]["w"])
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_a_checkpoint_comes_back_from_it(save, tmp_path, mesh, same_bytes):
    state = {"w": jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("data"))), "n": 3}
    export_npz(open_source(save(state)), tmp_path / "x.npz")
    assert same_bytes(restore(open_source(tmp_path / "x.npz"), state), state)


def test_names_choose_and_rename(tmp_path):
    names = lambda name: name.removeprefix("params/") if name.startswith("params/") else None
    export_npz(STATE, tmp_path / "x", names=names)
    assert set(open_source(tmp_path / "x.npz").arrays()) == {"w", "none"}


@pytest.mark.parametrize(
    ("state", "names", "said"),
    [
        ({"w": jnp.ones(2, jnp.bfloat16)}, None, r"npz cannot hold the dtypes of w \(bfloat16\)\. Cast them"),
        ({"w": jnp.ones(2, jnp.float8_e5m2)}, None, r"npz cannot hold the dtypes of w \(float8_e5m2\)"),
        (
            {"w": jax.random.key(0)},
            None,
            r"of w \(key<threefry2x32>\)\. PRNG keys cannot be cast",
        ),
        (STATE, lambda name: "x", "params/none and params/w would both be called x"),
        (STATE, lambda name: None, "returned None for every array"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path, state, names, said):
    with pytest.raises(UsageError, match=said):
        export_npz(state, tmp_path / "x", names=names)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_overwritten(tmp_path):
    export_npz(STATE, tmp_path / "x")
    with pytest.raises(UsageError, match=r"x\.npz exists already"):
        export_npz(STATE, tmp_path / "x")
