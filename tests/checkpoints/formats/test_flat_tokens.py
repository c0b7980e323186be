import json

import jax
import numpy as np
import pytest
import tensorstore

import meshwright as mw

SHARDING = mw.Layout(mw.make_mesh("data=1", jax.devices()[:1])).batch_sharding
BITSHUFFLED = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2}
SETTINGS = {
    "one stream": {"streams": 1, "sequences_per_read_block": 4, "read_blocks_per_shuffle_buffer": 3},
    "four streams": {"streams": 4, "sequences_per_read_block": 2, "read_blocks_per_shuffle_buffer": 2},
    "one buffer": {"streams": 2, "sequences_per_read_block": 3, "read_blocks_per_shuffle_buffer": 100},
}


def write(place, name, values, dtype):
    metadata = {"shape": [len(values)], "chunks": [64], "dtype": dtype, "compressor": BITSHUFFLED}
    spec = {"driver": "zarr", "kvstore": f"file://{place}/{name}/", "metadata": metadata, "create": True}
    tensorstore.open(spec).result().write(values).result()


@pytest.fixture
def encoded(tmp_path):
    """Write flat tokens, and return how they are encoded."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 20, 60)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    values = 2 * rng.integers(1, 500, starts[-1])
    values[starts[:-1]] += 1
    group = tmp_path / "data.zarr/train"
    write(group, "encoded_tokens", values.astype(np.uint32), "<u4")
    write(group, "seq_starts", starts.astype(np.uint64), "<u8")
    (group / ".zgroup").write_text('{"zarr_format": 2}')
    (group / ".zattrs").write_text(json.dumps({"max_token_id": 499}))
    return values


def shuffled(seed, size):
    """The rule of seqax's permutation, one swap at a time."""
    numbers, order = np.random.Philox(seed).random_raw(size), list(range(size))
    for i in range(size - 1, -1, -1):
        j = int(numbers[i]) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def steps(encoded, length, batch, seed, streams, sequences_per_read_block, read_blocks_per_shuffle_buffer):
    """Yield the rows of each step by the rule of seqax: streams, each a list, shuffled buffer by buffer."""
    rows = encoded[: len(encoded) // length * length].reshape(-1, length)
    num_blocks = len(rows) // sequences_per_read_block // streams * streams
    order = shuffled(seed, num_blocks)
    of_streams = []
    for stream in range(streams):
        blocks, sequence = order[stream::streams], []
        for number, first in enumerate(range(0, len(blocks), read_blocks_per_shuffle_buffer)):
            some = blocks[first : first + read_blocks_per_shuffle_buffer]
            buffer = [b * sequences_per_read_block + i for b in some for i in range(sequences_per_read_block)]
            mixed = shuffled(seed + 1 + number * streams + stream, len(buffer))
            sequence += [buffer[i] for i in mixed]
        of_streams.append(sequence)
    share = batch // streams
    for step in range(num_blocks * sequences_per_read_block // batch):
        yield rows[[i for each in of_streams for i in each[step * share : (step + 1) * share]]]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_batches_have_the_order_of_seqax_also_after_a_jump(encoded, settings, tmp_path):
    expected = list(steps(encoded, 8, 4, 7, **settings))
    examples = mw.checkpoints.flat_tokens(
        tmp_path / "data.zarr/train", length=8, batch_size=4, seed=7, **settings
    )
    assert examples.max_token_id == 499
    with mw.batches(examples, 4, SHARDING, seed=None, epochs=1) as data:
        found = list(data)
    assert len(found) == len(expected) > 5
    for batch, rows in zip(found, expected, strict=True):
        assert np.array_equal(batch["tokens"], rows >> 1)
        assert np.array_equal(batch["is_seq_start"], rows & 1)
    with mw.batches(examples, 4, SHARDING, seed=None) as data:
        state = data.get_state()
        data.set_state({**state, "samples": 4 * 4})
        assert np.array_equal(next(data)["tokens"], expected[4] >> 1)


def test_segments_and_positions_begin_with_each_sequence(encoded, tmp_path):
    settings = SETTINGS["one stream"]
    examples = mw.checkpoints.flat_tokens(
        tmp_path / "data.zarr/train", length=8, batch_size=4, seed=7, **settings
    )
    for i in range(len(examples)):
        row = examples[i]
        assert row["segments"][0] == 1
        assert np.array_equal(np.diff(row["segments"]), row["is_seq_start"][1:])
        assert not row["positions"][row["is_seq_start"]].any()
        assert np.array_equal(
            np.diff(row["positions"])[~row["is_seq_start"][1:]], np.ones(7)[~row["is_seq_start"][1:]]
        )


def test_such_data_are_no_checkpoint_and_it_is_said_what_they_are(encoded, tmp_path):
    for place in (tmp_path / "data.zarr/train", tmp_path / "data.zarr"):
        with pytest.raises(
            mw.errors.CheckpointError, match=r"flat tokens.\n.*flat_tokens\('.*data.zarr/train'"
        ):
            mw.checkpoints.open_source(place)
    options = {"length": 8, "seed": 7, **SETTINGS["four streams"]}
    with pytest.raises(mw.errors.InputError, match="has no flat tokens"):
        mw.checkpoints.flat_tokens(tmp_path, batch_size=4, **options)
    with pytest.raises(mw.errors.UsageError, match="must be a multiple of streams=4"):
        mw.checkpoints.flat_tokens(
            tmp_path / "data.zarr/train", length=8, batch_size=6, seed=7, **SETTINGS["four streams"]
        )
