import pytest
from google.protobuf.message import DecodeError
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import HistogramProto, Summary
from tensorboardX.proto.tensor_pb2 import TensorProto

from meshwright.base._protobufs import messages as declared
from meshwright.observe._tensorboard import messages


def theirs():
    """An event of each kind, of code that was generated."""
    histogram = HistogramProto(min=0, max=2, num=3, sum=4, sum_squares=6, bucket_limit=[1, 2], bucket=[1, 2])
    tensor = TensorProto(dtype=7, string_val=[b"a"], int_val=[1, 2], double_val=[0.5], tensor_content=b"b")
    image = Summary.Image(height=1, width=2, colorspace=3, encoded_image_string=b"png")
    values = [{"simple_value": 0.0}, {"histo": histogram}, {"tensor": tensor}, {"image": image}]
    text = Summary.Value(tag="text", tensor=tensor)
    text.metadata.plugin_data.plugin_name = "text"
    return [
        Event(wall_time=1.5, file_version="brain.Event:2"),
        Event(wall_time=2.5, step=3, session_log=SessionLog(status=SessionLog.START)),
        Event(step=2**40, summary=Summary(value=[*(Summary.Value(tag="a", **x) for x in values), text])),
    ]


@pytest.mark.parametrize("event", theirs())
def test_declared_messages_are_the_bytes_of_generated_ones(event):
    data = event.SerializeToString()
    ours = messages()["Event"].FromString(data)
    for unknown in ours, *ours.summary.value:
        unknown.DiscardUnknownFields()
    assert ours.SerializeToString() == data


def test_a_field_of_a_oneof_says_whether_it_is_there():
    Point = declared("test.oneof", {"Point": ["double x = 1", "oneof double y = 2"]})["Point"]
    assert [point.HasField("y") for point in (Point(), Point(y=0))] == [False, True]
    with pytest.raises(ValueError, match="x"):
        Point().HasField("x")


def test_bytes_that_are_no_message_are_refused():
    with pytest.raises(DecodeError):
        messages()["Event"].FromString(b"\xff")
