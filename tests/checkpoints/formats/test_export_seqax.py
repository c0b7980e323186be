import shutil

import jax
import numpy as np
import optax
import pytest
import zarr
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from checkpoints.formats.readers import written
from checkpoints.formats.readers.real import FIXTURES
from meshwright.checkpoints._arrays._diff import diff
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._convert import convert
from meshwright.checkpoints._formats._export_seqax import export_seqax
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import DamagedError, UsageError

W = np.arange(128, dtype=np.float32).reshape(16, 8)


def files(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_zarr_reads_what_is_written_in_the_chunks_of_its_shards(tmp_path, mesh):
    state = {"w": jax.device_put(W, NamedSharding(mesh, P("data", "fsdp"))), "layers": [np.zeros(3)]}
    made = export_seqax({"params": state, "step": np.int32(3)}, tmp_path, step=3)
    assert made == tmp_path / "0000000003"
    group = zarr.open_group(made, mode="r")
    assert group.attrs["write_completed"] is True
    w = group["['params']['w']"]
    assert (w.chunks, np.array_equal(w[...], W)) == ((8, 4), True)
    assert group["['params']['layers'][0]"][...].tolist() == [0, 0, 0]
    assert (group["['step']"][...], (made / "['step']" / "0").stat().st_size) == (3, 4)


def test_leaves_of_a_tree_are_called_as_by_jax_and_come_back(tmp_path):
    state = {"a/b": [np.ones(1)], "adam": optax.adam(1).init({"it's": W}), "50%": {"x": np.zeros((0, 2))}}
    made = export_seqax(state, tmp_path, step=1)
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    group = zarr.open_group(made, mode="r")
    for path, leaf in paths:
        assert np.array_equal(group[jax.tree_util.keystr(path)][...], leaf)
    restored = restore(open_source(tmp_path), state)
    assert jax.tree.all(jax.tree.map(np.array_equal, restored, state))


def test_leaves_of_a_checkpoint_are_called_as_if_all_keys_were_of_dictionaries(tmp_path, save):
    made = export_seqax(open_source(save({"layers": [W], "step": np.int32(3)})), tmp_path, step=1)
    assert sorted(zarr.open_group(made, mode="r").array_keys()) == ["['layers']['0']", "step"]


@pytest.mark.others
def test_what_seqax_wrote_is_written_again_byte_for_byte(tmp_path):
    shutil.unpack_archive(FIXTURES / "seqax/train_tiny.tar.gz", tmp_path, filter="data")
    source = open_source(tmp_path / "train_tiny")
    made = export_seqax(source, tmp_path / "again", step=source.step)
    assert files(made) == files(tmp_path / "train_tiny" / "0000000008")


def test_there_and_back_through_our_own_format_nothing_changes(tmp_path):
    source = open_source(written.seqax(tmp_path))
    ours = convert(source, tmp_path / "ours")
    made = export_seqax(open_source(ours), tmp_path / "theirs", step=7)
    assert diff(source, open_source(made)) == []
    assert open_source(ours).step == open_source(made).step == 7


def test_a_state_of_seqax_own_classes_has_names_without_separators(tmp_path):
    state = {"weights": {"embed": W}}
    export_seqax(state, tmp_path, step=1, names=lambda name: name.replace("/", ""))
    assert (tmp_path / "0000000001" / "weightsembed" / ".zarray").exists()
    assert np.array_equal(restore(open_source(tmp_path), state)["weights"]["embed"], W)


def test_a_store_takes_it_too(tmp_path):
    export_seqax({"w": W}, "memory://seqax/run", step=1)
    assert np.array_equal(open_source("memory://seqax/run").arrays()["w"], W)


def test_what_is_there_or_cannot_be_is_refused(tmp_path):
    export_seqax({"w": W}, tmp_path, step=1)
    with pytest.raises(UsageError, match="0000000001 exists already"):
        export_seqax({"w": W}, tmp_path, step=1)
    with pytest.raises(UsageError, match=r"seqax cannot hold the dtypes of w \(bfloat16\)"):
        export_seqax({"w": W.astype("bfloat16")}, tmp_path, step=2)
    with pytest.raises(UsageError, match=r"zarr has no arrays called '\.\.'"):
        export_seqax({"..": W}, tmp_path, step=2, names=str)
    with pytest.raises(UsageError, match=r"zarr has no arrays called .*a/\.\./b"):
        export_seqax({"a/../b": W}, tmp_path, step=2)


def test_what_fails_half_way_is_not_complete(tmp_path):
    source = open_source(written.seqax(tmp_path))
    (tmp_path / "0000000007" / "['step']" / "0").unlink()
    with pytest.raises(DamagedError):
        export_seqax(source, tmp_path / "again", step=7)
    assert not (tmp_path / "again" / "0000000007" / ".zattrs").exists()
