"""Real checkpoints of other systems, which lie beside the project, and what is expected of them.

They are others' files, so they are not in the repository: tests that need them are marked `others`, and are
run by `make test-others`.
"""

import functools
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np

from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._formats.readers._t5x import open_t5x

FIXTURES = Path(os.environ.get("OTHERS") or Path(__file__).parents[5] / "shared/fixtures")

_TINY = "t5x/upstream_testdata/"
_SEQAX, _REDCO = "seqax/train_tiny", "redco/ckpt_dp_adamw_orbax0.12"
WITHOUT_METADATA = f"{_TINY}tiny_orbax/1"
REAL = {
    f"{_TINY}test_t5_tiny.checkpoint_0": f"{_TINY}test_t5_tiny.expected.json",
    f"{_TINY}tiny_t5": f"{_TINY}tiny_t5.expected.npz",
    f"{_TINY}tiny_t5_repaired": f"{_TINY}tiny_t5.expected.npz",
    WITHOUT_METADATA: f"{_TINY}tiny_orbax.expected.npz",
    "t5x/shapes_bf16/checkpoint_200": "t5x/shapes_bf16_200.expected.npz",
    "t5x/shapes_bf16": "t5x/shapes_bf16_300.expected.npz",
    "t5x/variants/base": "t5x/variants/base.expected.npz",
    "t5x/variants/written_with_gfile": "t5x/variants/base.expected.npz",
    "t5_tensorflow/t5_1_0": "t5_tensorflow/t5_1_0.expected.npz",
    f"{_SEQAX}/0000000004": f"{_SEQAX}.0000000004.expected.npz",
    f"{_SEQAX}": f"{_SEQAX}.0000000008.expected.npz",
    _REDCO: f"{_REDCO}/expected.npz",
}
"""The checkpoints, and the files of what is expected of them; where there are several, of the newest."""


class Expected(NamedTuple):
    """What an array should be. `sha256` is of its bytes, row-major."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str

    @classmethod
    def of(cls, array):
        return cls(array.shape, array.dtype.name, hashlib.sha256(array.tobytes()).hexdigest())


def unpacked(directory):
    """Fill a directory with the real checkpoints, so that each of `REAL` is there."""
    for folder in FIXTURES.iterdir():
        if folder.name != "seqax" and folder.is_dir():
            (directory / folder.name).symlink_to(folder)
    shutil.unpack_archive(FIXTURES / f"{_SEQAX}.tar.gz", directory / "seqax", filter="data")
    return directory


@functools.cache
def wanted_of(path):
    """Return what is expected of one of `REAL`, by our names."""
    file = FIXTURES / REAL[path]
    if file.suffix == ".json":
        leaves = json.loads(file.read_text())["leaves"].items()
        return {name: Expected(tuple(x["shape"]), x["dtype"], x["sha256"]) for name, x in leaves}
    return {_ours(path, name): Expected.of(x) for name, x in arrays_of(REAL[path]).items()}


def arrays_of(name):
    """Return the arrays of a file of expected values; those called `…::bf16` are bits of bfloat16."""
    with np.load(FIXTURES / name) as file:
        arrays = {key: file[key] for key in file.files}
    return {
        key.removesuffix("::bf16"): x.view(ml_dtypes.bfloat16) if key.endswith("::bf16") else x
        for key, x in arrays.items()
    }


def _ours(path, name):
    """Return our name of what is called `name` in the file of expected values."""
    if path == WITHOUT_METADATA:
        return name.removeprefix("_optimizer.").replace(".", "/")
    if path == _REDCO:
        return re.sub(r"\['(.*?)'\]", r"/\1", re.sub(r"^opt_state\[(\d)\]\.", r"opt_state/\1/", name))
    return "/".join(_seqax_layout()[name]["path"]) if path.startswith(_SEQAX) else name


@functools.cache
def _seqax_layout():
    return json.loads((FIXTURES / f"{_SEQAX}.layout.json").read_text())["arrays"]


def opened(place, wanted):
    """Open a checkpoint, and tell the shapes to the one that does not know them."""
    if str(place).endswith(WITHOUT_METADATA):
        return open_t5x(place, like=tree.nested(structs(wanted)))
    return open_source(place)


def structs(arrays, mesh=None):
    """Return what to restore, by name: whole, or over a mesh, but for what JAX holds only half of."""
    return {
        name: jax.ShapeDtypeStruct(
            x.shape,
            np.dtype(x.dtype),
            sharding=split(mesh, x.shape) if mesh and np.dtype(x.dtype).itemsize < 8 else None,
        )
        for name, x in arrays.items()
    }


def split(mesh, shape):
    """Return a sharding of an array of this shape that splits what it can, and more than one dimension."""
    ways, spec = [1] * len(shape), [()] * len(shape)
    for axis, size in mesh.shape.items():
        fitting = [dim for dim, length in enumerate(shape) if length and length % (ways[dim] * size) == 0]
        if fitting:
            dim = min(fitting, key=ways.__getitem__)
            ways[dim] *= size
            spec[dim] += (axis,)
    return jax.NamedSharding(mesh, jax.P(*spec))


def restored(source, mesh=None, arrays=None):
    """Restore everything, whole, or over a mesh, and return it by name."""
    target = tree.nested(structs(source.arrays() if arrays is None else arrays, mesh))
    return tree.named_leaves(restore(source, target))


def bytes_read(act):
    """Return how many bytes this process reads from files while it calls `act`."""

    def said():
        return Path("/proc/self/io").read_text()

    before = said()
    act()
    after = said()
    own = len(before)  # which was read after it was written
    return int(after.split()[1]) - int(before.split()[1]) - own


def assert_same(found, wanted):
    """Assert that two sets of named arrays have the same names, dtypes, shapes and bytes."""
    found = {name: Expected.of(np.asarray(x)) for name, x in found.items()}
    assert found == {name: Expected.of(x) for name, x in wanted.items()}


def assert_restored(place, wanted, mesh):
    """Assert that a checkpoint is restored leaf for leaf, whole, and every part that a device here has."""
    source = opened(place, wanted)
    whole = restored(source, arrays=wanted)
    assert {name: Expected.of(x) for name, x in whole.items()} == wanted
    for name, array in restored(source, mesh, wanted).items():
        for shard in getattr(array, "addressable_shards", ()):
            part = whole[name][shard.index]
            assert (shard.data.dtype, shard.data.shape) == (part.dtype, part.shape), name
            assert np.asarray(shard.data).tobytes() == part.tobytes(), name
