import struct
import zlib

import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.errors import UsageError
from meshwright.observe._kinds import Image, numbers
from meshwright.observe._metrics import Histogram


def test_numbers_of_any_kind_are_floats_and_what_else_a_report_holds_is_left_out():
    values = {"a": 1, "b": True, "c": np.float16(0.5), "d": jnp.bfloat16(2), "e": np.array(3, np.uint8)}
    found = numbers(values | {"x": Histogram.of(np.ones(2)), "y": "text", "z": Image.of(np.ones((1, 1)))})
    assert found == {"a": 1, "b": 1, "c": 0.5, "d": 2, "e": 3}
    assert {type(value) for value in found.values()} == {float}


@pytest.mark.parametrize(
    ("value", "said"),
    [(np.ones(3), r"has the shape \(3,\)"), (None, "is of type NoneType; expected a number")],
)
def test_what_no_report_may_hold_is_named(value, said):
    with pytest.raises(UsageError, match=f"'odd' {said}"):
        numbers({"loss": 1.0, "odd": value})


def rows_of(png):
    """The pixels in a PNG file of 8-bit RGB that is neither filtered nor interlaced."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, rest = {}, png[8:]
    while rest:
        (length,) = struct.unpack(">I", rest[:4])
        kind, data, rest = rest[4:8], rest[8 : 8 + length], rest[8 + length :]
        assert struct.unpack(">I", rest[:4])[0] == zlib.crc32(kind + data)
        chunks[kind], rest = data, rest[4:]
    width, height, *form = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert (form, list(chunks)[-1], rows[:, 0].any()) == ([8, 2, 0, 0, 0], b"IEND", False)
    return rows[:, 1:].reshape(height, width, 3)


def test_an_image_is_the_pixels_of_its_png():
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert np.array_equal(rows_of(Image.of(pixels).png()), pixels)


def test_floats_are_from_dark_to_bright_and_grey_where_there_is_one_channel():
    image = Image.of(jnp.array([[0, 0.5, 1], [-1, 2, jnp.nan]], jnp.bfloat16))
    assert image.pixels[..., 0].tolist() == [[0, 128, 255], [0, 255, 0]]
    assert np.array_equal(image.pixels, np.repeat(image.pixels[..., :1], 3, axis=2))


@pytest.mark.parametrize("pixels", [np.ones(3), np.ones((2, 2, 4)), np.ones((2, 2), np.int32)])
def test_what_is_no_image_is_refused(pixels):
    with pytest.raises(UsageError, match="an image must be"):
        Image.of(pixels)
