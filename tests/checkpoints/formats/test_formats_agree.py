"""One tree in every format: what takes a source takes each of them alike."""

import tarfile

import flax.serialization
import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from checkpoints.formats.readers.real import FIXTURES, arrays_of
from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._diff import diff
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._arrays._source import cast, subtree
from meshwright.checkpoints._convert import with_changes, with_native_names
from meshwright.checkpoints._formats._export_npz import export_npz
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._export_seqax import export_seqax
from meshwright.checkpoints._formats._export_t5x import export_t5x
from meshwright.checkpoints._formats._open import open_source
from meshwright.engine._experiment._builders import truncate
from meshwright.errors import CheckpointError

W = np.arange(24, dtype=np.float32).reshape(4, 6)
PARAMS = {"embed": W, "layers": {"0": {"w": W + 1}, "1": {"w": W + 2}}, "ids": np.arange(3, dtype=np.int32)}
STATE = {"params": PARAMS, "step": np.asarray(7, np.int32)}


def native(place):
    with mw.Checkpoints(place) as checkpoints:
        checkpoints.save(7, STATE)
    return place


def msgpack(place):
    place.mkdir()
    (place / "checkpoint_7").write_bytes(flax.serialization.to_bytes(STATE))
    return place


def seqax_joined(place):
    """As seqax's own states are written, whose keys are joined by nothing."""
    export_seqax(STATE, place, step=7, names=lambda name: name.replace("/", ""))
    return place


WRITERS = {
    "native": native,
    "safetensors": lambda place: export_safetensors(STATE, place)[0].parent,
    "npz": lambda place: export_npz(STATE, place / "arrays"),
    "seqax": lambda place: export_seqax(STATE, place, step=7).parent,
    "seqax_joined": seqax_joined,
    "t5x": lambda place: export_t5x(STATE, place, step=7, names=lambda name: f"target/{name}").parent,
    "msgpack": msgpack,
}


@pytest.fixture(scope="module", params=WRITERS)
def place(request, tmp_path_factory):
    """Return where the tree lies in each format."""
    return str(WRITERS[request.param](tmp_path_factory.mktemp(request.param) / "here"))


@pytest.fixture
def source(place):
    """Return it opened, with T5X's `target` taken off."""
    found = open_source(place)
    return subtree(found, "target") if found.format == "T5X" else found


def equal(found, wanted):
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    return jax.tree.map(lambda x: np.asarray(x).dtype, found) == jax.tree.map(lambda x: x.dtype, wanted)


def test_restore_finds_all_by_our_names(source):
    assert equal(restore(source, STATE), STATE)


def test_a_subtree_is_taken_by_our_names(source):
    assert equal(restore(subtree(source, "params"), PARAMS), PARAMS)
    layers = PARAMS["layers"]
    assert equal(restore(subtree(source, "params/layers"), layers), layers)
    assert equal(restore(subtree(subtree(source, "params"), "layers"), layers), layers)


def test_a_subtree_that_is_not_there_is_an_error(source):
    with pytest.raises(CheckpointError, match="has no arrays below parms/"):
        subtree(source, "parms")


def test_casts_go_by_our_names_and_what_is_cast_is_found(source):
    pattern = "params.*" if "seqax" in str(source) else "params/.*"
    half = jax.tree.map(lambda x: x.astype("float16") if x.dtype == np.float32 else x, STATE)
    assert equal(restore(cast(source, [(pattern, "float16")]), half), half)
    assert equal(restore(with_changes(source, dtype="float16"), half), half)
    part = subtree(cast(source, [(pattern, "float16")]), "params/layers")
    assert equal(restore(part, half["params"]["layers"]), half["params"]["layers"])


def test_what_is_ignored_goes_by_our_names(source):
    pattern = "params.*" if "seqax" in str(source) else "params/(ids|layers/.*)"
    wanted = {"params": {"embed": W}, "step": STATE["step"]}
    assert equal(restore(source, wanted, ignore=pattern), wanted)


def test_names_are_kept_whichever_changes_are_made(source):
    changed = cast(with_changes(source), [(".*", "float32")])
    assert not diff(changed, with_native_names(source))


def init(key):
    return {"embed": np.zeros((4, 6), np.float32), "layers": {"0": {"w": np.zeros((2, 6), np.float32)}}}


def test_a_run_starts_from_it(place, mesh):
    target = mw.training.abstract_state(init, optax.sgd(0.1), mw.Layout(mesh))
    prefix = "target/" if open_source(place).format == "T5X" else ""
    given = mw.engine.from_checkpoint(
        place,
        "params/(embed|layers/0/w)",
        assign=[("(params/.*)", rf"{prefix}\1")],
        casts=[(".*", "float32")],
        adapt=[("params/layers/0/w", truncate())],
    )(target)
    assert np.array_equal(given["params/embed"], W)
    assert np.array_equal(given["params/layers/0/w"], W[:2] + 1)


@pytest.mark.others
def test_a_run_starts_from_a_real_run_of_seqax(tmp_path, mesh):
    with tarfile.open(FIXTURES / "seqax/train_tiny.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    wanted = arrays_of("seqax/train_tiny.0000000004.expected.npz")["weightsembed"]

    def init(key):
        return {"embed": np.zeros(wanted.shape, wanted.dtype)}

    target = mw.training.abstract_state(init, optax.sgd(0.1), mw.Layout(mesh))
    build = mw.engine.from_checkpoint(
        str(tmp_path / "train_tiny/0000000004"), "params/.*", assign=[("params/(.*)", r"weights/\1")]
    )
    assert np.array_equal(build(target)["params/embed"], wanted)
    weights = subtree(open_source(tmp_path / "train_tiny/0000000004"), "weights")
    found = restore(weights, {"embed": wanted}, ignore=".*")
    assert tree.named_leaves(found).keys() == {"embed"}
