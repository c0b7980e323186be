from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.record_writer import RecordWriter

from meshwright.observe._tensorboard import read_scalars, record, tensorboard


def write(run, step, values):
    with tensorboard(run) as writer:
        writer(step, values)


def tensor_event(step, **tensor):
    event = Event(step=step)
    event.summary.value.add(tag="loss", tensor=TensorProto(**tensor))
    return event


def test_values_are_found_by_step(tmp_path):
    with tensorboard(tmp_path / "train") as writer:
        for step in (10, 20, 30):
            writer(step, {"lr": 0.5, "loss": step / 4})
    assert read_scalars(tmp_path, "train/loss") == {10: 2.5, 20: 5.0, 30: 7.5}


def test_what_was_written_last_for_a_step_counts(tmp_path):
    write(tmp_path / "train", 10, {"loss": 1.0})
    write(tmp_path / "train", 10, {"loss": 2.0})
    assert read_scalars(tmp_path, "train/loss") == {10: 2.0}


@pytest.mark.parametrize(
    ("runs", "name", "found"),
    [
        (["train"], "train/loss", 0),
        (["a", "a/b"], "a/b/loss", None),
        (["a/b"], "a/b/loss", 0),
        (["a/b", "a/b/c"], "a/b/c/loss", None),
        (["other"], "train/loss", None),
        (["train"], "loss", None),
    ],
    ids=["plain", "shadowed", "nested", "shadowed deeper", "another run", "no run is named"],
)
def test_the_run_is_the_first_directory_on_the_way_with_event_files(tmp_path, runs, name, found):
    for i, run in enumerate(runs):
        write(tmp_path / run, 1, {"loss": float(i)})
    assert read_scalars(tmp_path, name) == ({} if found is None else {1: found})


def test_a_tag_may_have_slashes_too(tmp_path):
    write(tmp_path / "run", 1, {"eval/glue/accuracy": 0.25})
    assert read_scalars(tmp_path, "run/eval/glue/accuracy") == {1: 0.25}


def test_without_a_run_of_that_name_the_tag_is_looked_for_in_the_directory_itself(tmp_path):
    write(tmp_path, 1, {"test/loss": 0.5})
    assert read_scalars(tmp_path, "test/loss") == {1: 0.5}


def test_what_is_not_there_has_no_values(tmp_path):
    assert read_scalars(tmp_path / "nowhere", "train/loss") == {}
    write(tmp_path / "train", 1, {"loss": 0.5})
    assert read_scalars(tmp_path, "train/los") == {}


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        ({"dtype": 1, "float_val": [0.5]}, 0.5),
        ({"dtype": 1, "tensor_content": np.float32(0.5).tobytes()}, 0.5),
        ({"dtype": 2, "tensor_content": np.float64(1e300).tobytes()}, 1e300),
        ({"dtype": 9, "int64_val": [2**40]}, 2**40),
        ({"dtype": 1, "float_val": [0.5, 0.25]}, None),
        ({"dtype": 7, "string_val": [b"text"]}, None),
    ],
)
def test_scalars_that_tensorflow_wrote_as_tensors_are_read(tmp_path, tensor, value):
    (tmp_path / "events.out.tfevents.1").write_bytes(record(tensor_event(3, **tensor).SerializeToString()))
    assert read_scalars(tmp_path, "loss") == ({} if value is None else {3: value})


@given(st.data())
def test_a_file_is_read_up_to_where_it_is_cut_off_or_damaged(tmp_path_factory, data):
    events = [tensor_event(step, dtype=1, float_val=[0.5]) for step in range(3)]
    content = b"".join(record(event.SerializeToString()) for event in events)
    at = data.draw(st.integers(0, len(content) - 1))
    flipped = content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :]
    run = tmp_path_factory.mktemp("run")
    intact = dict.fromkeys(range(at * 3 // len(content)), 0.5)
    for damaged in (content[:at], flipped):
        (run / "events.out.tfevents.1").write_bytes(damaged)
        found = read_scalars(run, "loss")
        assert found.items() >= intact.items()
        assert found.items() <= dict.fromkeys(range(3), 0.5).items()


def test_a_record_is_what_other_writers_write(tmp_path):
    with closing(RecordWriter(str(tmp_path / "theirs"))) as file:
        file.write(b"an event")
    assert record(b"an event") == (tmp_path / "theirs").read_bytes()
