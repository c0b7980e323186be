import numpy as np
import pytest
from tensorboardX.record_writer import masked_crc32c as byte_by_byte

from meshwright.base._checksums import masked_crc32c


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(32), bytes(range(256)) * 5])
def test_a_checksum_is_that_of_every_byte_after_the_other_masked(data):
    expected = byte_by_byte(data).to_bytes(4, "little")
    assert masked_crc32c(data) == masked_crc32c(np.frombuffer(data, np.uint8)) == expected
