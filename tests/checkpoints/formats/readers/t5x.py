"""T5X's checkpoints as T5X writes them: msgpack by Flax, arrays by TensorStore."""

import json

import numpy as np
import tensorstore
from flax import serialization


def nested(leaves):
    whole = {}
    for name, leaf in leaves.items():
        *above, last = name.split("/")
        inner = whole
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = leaf
    return whole


def write_array(path, array, chunks, compressor):
    spec = spec_of(str(path) + "/", array, chunks, compressor)
    tensorstore.open(spec, create=True).result().write(array).result()


def spec_of(path, array, chunks, compressor):
    """The spec that T5X keeps in its tree."""
    return {
        "driver": "zarr",
        "dtype": array.dtype.name,
        "kvstore": {"driver": "file", "path": path},
        "metadata": {"chunks": list(chunks), "compressor": compressor, "shape": list(array.shape)},
    }


def write(directory, arrays, *, in_tree=(), version=3, compressor=None, chunks=None, spec=spec_of, rest=None):
    """Write a step directory. `in_tree` are kept in the msgpack; `spec` says how the others stand there."""
    directory.mkdir(parents=True)
    compressor = compressor or {"id": "gzip", "level": 1}
    leaves = {**(rest or {})}
    for name, array in arrays.items():
        leaves[name] = array
        if name not in in_tree:
            folder, shape = name.replace("/", "."), (chunks or {}).get(name, array.shape)
            write_array(directory / folder, array, shape, compressor)
            leaves[name] = spec(folder + "/", array, shape, compressor)
    content = {"version": version, "optimizer": nested(leaves)}
    (directory / "checkpoint").write_bytes(serialization.msgpack_serialize(content))
    return directory


def read(directory):
    """Read a step directory without a line of ours, as T5X reads it: every array by its spec."""
    content = serialization.msgpack_restore((directory / "checkpoint").read_bytes())
    assert content["version"] == 3
    return dict(_leaves(directory, "", content["optimizer"]))


def _leaves(directory, prefix, node):
    for key, value in node.items():
        name = f"{prefix}/{key}".lstrip("/")
        if isinstance(value, dict) and {"driver", "kvstore", "metadata"} <= value.keys():
            path = str(directory / value["kvstore"]["path"])
            opened = tensorstore.open({**value, "kvstore": {"driver": "file", "path": path}}).result()
            yield name, opened.read().result()
        elif isinstance(value, dict):
            yield from _leaves(directory, name, value)
        elif value is not None:
            yield name, np.asarray(value)


def zarray(directory, name):
    return json.loads((directory / name.replace("/", ".") / ".zarray").read_text())
