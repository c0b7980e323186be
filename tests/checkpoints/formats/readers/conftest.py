import numpy as np
import pytest

from checkpoints.formats.readers import real, written

WRITERS = [
    written.safetensors,
    written.npz,
    written.npz_compressed,
    written.flax_msgpack,
    written.seqax,
    written.t5x,
]
ORBAX_TREES = [
    *(
        "0.3.5/tree",
        "0.3.5/tree_ocdbt",
        "0.5.20/tree",
        "0.5.20/tree_ocdbt",
        "0.12.8/tree",
        "0.12.8/tree_ocdbt",
    ),
    *("0.12.8/tree_zarr3", "0.12.8/tree_ocdbt_zarr3", "0.12.8/version_1"),
]
ALSO = {
    written.safetensors: written.HALF,
    written.flax_msgpack: written.HALF,
    written.t5x: written.HALF,
    written.npz: {"columns": written.ARRAYS["params/w"]},
    written.npz_compressed: {"big_endian": np.arange(9, dtype=np.int16)},
}


@pytest.fixture(scope="session")
def golden(tmp_path_factory):
    """Return the directory of what versions of Orbax wrote. It is not to be changed."""
    return written.orbax(tmp_path_factory.mktemp("orbax"))


@pytest.fixture(scope="session")
def real_checkpoints(tmp_path_factory):
    """Return the directory of the real checkpoints, if they are there. It is not to be changed."""
    return real.unpacked(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="session", params=[*WRITERS, *ORBAX_TREES], ids=lambda x: getattr(x, "__name__", x))
def foreign(request, tmp_path_factory):
    """Return each of the checkpoints that others wrote, with what it holds by our names."""
    if isinstance(request.param, str):
        return request.getfixturevalue("golden") / request.param, written.ORBAX
    return request.param(tmp_path_factory.mktemp("foreign")), written.ARRAYS | ALSO.get(request.param, {})


@pytest.fixture(scope="session")
def bytes_read():
    """Return a function that tells how many bytes this process reads from files while it calls another."""
    return real.bytes_read
