"""CRC-32C, which records and tables of TensorFlow's have, in NumPy: Python has only the other CRC-32.

A checksum is linear in the bytes: those of a block are looked up all at once, each by what it adds to the
checksum of the block. Byte by byte Python takes twenty times as long.

Source: RFC 3720, appendix B.4.
"""

from functools import cache

import numpy as np

_BLOCK = 256
_PIECE = _BLOCK << 12
_TO_ONES = bytes.fromhex("54641f64")
"""After these bytes a CRC-32C that began with zeros is all ones, which it has to begin with."""


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the CRC-32C of bytes."""
    octets = np.frombuffer(data, np.uint8)
    first = len(octets) % _PIECE
    begin = _TO_ONES + octets[:first].tobytes()
    begin = begin.rjust(-(-len(begin) // _BLOCK) * _BLOCK, b"\0")  # zeros in front change nothing
    crc = _after(0, np.frombuffer(begin, np.uint8))
    for start in range(first, len(octets), _PIECE):
        crc = _after(crc, octets[start : start + _PIECE])
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | np.ndarray) -> bytes:
    """Return the CRC-32C as files have it: masked, so that a CRC of CRCs means something."""
    crc = crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def _after(crc: int, octets: np.ndarray) -> int:
    """Return what a checksum becomes by more bytes, a number of whole blocks."""
    table, (first, second, third, fourth) = _tables()
    blocks = octets.reshape(-1, _BLOCK)
    for alone in np.bitwise_xor.reduce(table[np.arange(_BLOCK), blocks], axis=1).tolist():
        crc = alone ^ first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]
    return crc


@cache
def _tables() -> tuple[np.ndarray, list[list[int]]]:
    """Return what each byte at each place in a block adds to its checksum, and the first four rows as lists.

    The checksum so far is added as if it were in the block's first four bytes.
    """
    crcs = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crcs = crcs >> 1 ^ np.where(crcs & 1, np.uint32(0x82F63B78), np.uint32(0))
    rows = [crcs]
    for _ in range(_BLOCK - 1):  # one zero byte more behind it
        rows.append(crcs[rows[-1] & 255] ^ rows[-1] >> 8)
    table = np.stack(rows[::-1])
    return table, table[:4].tolist()
