import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX.crc32c import crc32c as byte_by_byte

from meshwright.crc32c import crc32c


@given(st.binary(max_size=1100))
def test_a_checksum_is_that_of_every_byte_after_the_other(data):
    assert crc32c(data) == crc32c(np.frombuffer(data, np.uint8)) == byte_by_byte(data)


@given(st.binary(max_size=100), st.integers(10, 40))
def test_so_it_is_of_what_is_taken_in_several_pieces(data, repeats):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshwright.crc32c._PIECE", 512)
        assert crc32c(data * repeats) == byte_by_byte(data * repeats)


def test_the_checksum_is_that_of_the_standard():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
