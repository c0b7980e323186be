"""CRC-32C as TensorFlow's records and tables have it, masked, so that a CRC of CRCs means something."""

import google_crc32c
import numpy as np


def masked_crc32c(data: bytes | np.ndarray) -> bytes:
    """Return the masked CRC-32C of bytes, as files have it."""
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
