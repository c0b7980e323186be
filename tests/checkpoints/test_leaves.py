"""Every kind of leaf, and what is none."""

import json
import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._restore import restore, restore_lazily
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, UsageError


def draws(keys):
    return np.asarray(jax.random.key_data(keys)).tolist()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_keys_come_back_as_such(save, impl):
    state = {"rng": jax.random.key(3, impl=impl), "each": jax.random.split(jax.random.key(4, impl=impl), 6)}
    restored = restore(open_source(save(state)), tree.abstract(state))
    assert jax.tree.map(lambda x: x.dtype, restored) == jax.tree.map(lambda x: x.dtype, state)
    assert jax.tree.map(draws, restored) == jax.tree.map(draws, state)


def test_sharded_keys_come_back_sharded(mesh, save):
    sharding = NamedSharding(mesh, P("fsdp"))
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), sharding)
    restored = restore(open_source(save({"rng": keys})), {"rng": keys})["rng"]
    assert restored.sharding == sharding
    assert draws(restored) == draws(keys)


def test_keys_of_another_implementation_are_refused(save):
    source = open_source(save({"rng": jax.random.key(0, impl="rbg")}))
    with pytest.raises(
        CheckpointError, match="rng: dtype key<rbg> in the checkpoint, key<unsafe_rbg> in the"
    ):
        restore(source, {"rng": jax.random.key(0, impl="unsafe_rbg")})
    with pytest.raises(CheckpointError, match="rng: dtype key<rbg> in the checkpoint, uint32 in the target"):
        restore(source, {"rng": np.zeros(4, np.uint32)})


def test_keys_stay_keys_through_a_lazy_state(save, tmp_path):
    state = {"rng": jax.random.split(jax.random.key(5), 3)}
    lazy = restore_lazily(open_source(save(state)), state)
    with Checkpoints(tmp_path / "again") as checkpoints:
        checkpoints.save(1, {"rng": lazy["rng"][1:]})
    restored = restore(open_source(tmp_path / "again"), {"rng": state["rng"][1:]})
    assert draws(restored["rng"]) == draws(state["rng"][1:])


def test_the_manifest_says_which_arrays_are_keys(save):
    checkpoint = save({"rng": jax.random.key(0), "w": 1.0})
    assert json.loads((checkpoint / "manifest.json").read_text())["prng_keys"] == {"rng": "threefry2x32"}
    assert open_source(checkpoint).arrays()["rng"].dtype == np.uint32


def test_a_manifest_without_word_of_keys_is_read(save):
    manifest = save({"w": 1.0}) / "manifest.json"
    body = manifest.read_bytes().replace(b'"prng_keys": {},\n', b"").rpartition(b'"crc32"')[0]
    manifest.write_bytes(body + b'"crc32": %d}\n' % zlib.crc32(body))
    assert restore(open_source(manifest.parent), {"w": 0.0}) == {"w": 1.0}


class Moments(NamedTuple):
    mean: jax.Array
    unused: None


def test_what_has_no_leaves_takes_its_place_again(save, same_bytes):
    state = {
        "none": None,
        "dict": {},
        "list": [],
        "tuple": (),
        "chain": optax.chain(optax.clip(1.0), optax.sgd(0.1)).init(jnp.zeros(3)),
        "moments": Moments(jnp.ones(2), None),
        "deep": {"er": [None, {}, {"x": 1}]},
    }
    restored = restore(open_source(save(state)), state)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert restored["none"] is None
    assert same_bytes(restored["moments"].mean, state["moments"].mean)


def test_a_state_without_leaves_is_a_state(save):
    assert restore(open_source(save({})), {"empty": ()}) == {"empty": ()}


def test_a_leaf_where_there_was_none_is_missing(save):
    with pytest.raises(CheckpointError, match="a: in the target, but not in the checkpoint"):
        restore(open_source(save({"a": None, "b": 1})), {"a": 0, "b": 0})


ODD = ["a.b", "a/b", "a%2Fb", "a[0]", "['x']", " ", "", ".", "ünï", "日本", "a\nb", "🙂", "-", "C:\\x"]


def test_odd_names_come_back(save, same_bytes):
    state = {name: {"w": np.full(2, number)} for number, name in enumerate(ODD)}
    assert same_bytes(restore(open_source(save(state)), state), state)


@pytest.mark.parametrize(
    "leaf", ["text", b"bytes", np.array(["a"]), 1 << 70, np.datetime64("2020-01-01")], ids=str
)
def test_what_is_no_number_is_refused_by_name(tmp_path, leaf):
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(UsageError, match=r"  odd/one: .*\n.*`extra`"):
        checkpoints.save(1, {"odd": {"one": leaf}})
    assert checkpoints.latest() is None


def test_damage_goes_unnoticed_only_where_that_is_asked_for(save):
    checkpoint = save({"x": np.zeros(5, np.uint8)})
    [[_, offset, *_]] = json.loads((checkpoint / "manifest.json").read_text())["arrays"]["x"]["chunks"]
    with (checkpoint / "data-00000-of-00001.zarr.zip").open("r+b") as file:
        file.seek(offset)
        file.write(b"\1")
    with pytest.raises(CheckpointError, match="CRC-32"):
        open_source(checkpoint).read("x", (slice(None),))
    assert open_source(checkpoint, verify=False).read("x", (slice(None),)).tolist() == [1, 0, 0, 0, 0]


@jax.tree_util.register_pytree_with_keys_class
class Frozen(dict):
    """A dictionary of another type, as model libraries have them, whose keys are in no order of ours."""

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.DictKey(key), value) for key, value in self.items()], tuple(self)

    @classmethod
    def tree_unflatten(cls, keys, values):
        return cls(zip(keys, values, strict=True))


def test_a_dictionary_of_another_type_comes_back_as_such(save):
    state = {"params": Frozen(b=np.ones(2), a=Frozen(w=np.zeros(3)))}
    restored = restore(open_source(save(state)), state)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert isinstance(restored["params"], Frozen)
    assert isinstance(restored["params"]["a"], Frozen)


class Reordered(NamedTuple):
    unused: None
    mean: jax.Array


def test_arrays_are_known_by_name_and_not_by_their_order(save):
    saved = {"moments": Moments(np.ones(2), None), "params": Frozen(b=np.full(2, 2.0), a=np.full(2, 3.0))}
    target = {"params": {"a": np.zeros(2), "b": np.zeros(2)}, "moments": Reordered(None, np.zeros(2))}
    restored = restore(open_source(save(saved)), target)
    assert restored["moments"].mean.tolist() == [1, 1]
    assert (restored["params"]["a"].tolist(), restored["params"]["b"].tolist()) == ([3, 3], [2, 2])
