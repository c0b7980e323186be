"""CRC-32C of many bytes at a time, in NumPy: Python has only the other CRC-32.

The register of a CRC that begins at 0 is linear in the data, and zeros in front do not change it. So the
data, filled up in front, is cut into lanes that are worked on side by side, and what comes of two
neighbours is joined: the left one moved on over as many zero bytes as the right one is long.

Source: RFC 3720, appendix B.4 (the polynomial); zlib's `crc32_combine` (moving a register over zeros).
"""

import functools
import math

import numpy as np

_POLYNOMIAL = 0x82F63B78  # bits reversed
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_MAX_LANES = 4096


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the CRC-32C of bytes."""
    octets = np.frombuffer(data, np.uint8)
    lanes = 1 << min(math.isqrt(len(octets)).bit_length(), _MAX_LANES.bit_length() - 1)
    length = -(-len(octets) // (2 * lanes)) * 2
    filled = np.zeros(lanes * length, np.uint8)
    filled[len(filled) - len(octets) :] = octets
    register, next_of_pair = np.zeros(lanes, np.uint32), _next_of_pair()
    for pair in np.ascontiguousarray(filled.view("<u2").reshape(lanes, -1).T):
        register = next_of_pair[(register ^ pair) & 0xFFFF] ^ (register >> 16)
    over = _over_zeros(length)
    while len(register) > 1:
        register = _moved(over, register[::2]) ^ register[1::2]
        over = _moved(over, over)
    start = _moved(_over_zeros(len(octets)), np.array([0xFFFFFFFF], np.uint32))
    return int(register[0] ^ start[0]) ^ 0xFFFFFFFF


def unmasked(stored: int) -> int:
    """Return the CRC that was stored masked, as LevelDB does so that a CRC of CRCs means something."""
    rotated = (stored - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def _next(register: np.ndarray) -> np.ndarray:
    """Return registers that have taken one more byte, given by exclusive or."""
    for _ in range(8):
        register = np.where(register & 1, register >> 1 ^ _POLYNOMIAL, register >> 1).astype(np.uint32)
    return register


def _over_zeros(nbytes: int) -> np.ndarray:
    """Return what becomes of each bit of a register after so many zero bytes."""
    over, power = _BITS, _next(_BITS)
    while nbytes:
        over = _moved(power, over) if nbytes & 1 else over
        power, nbytes = _moved(power, power), nbytes >> 1
    return over


def _moved(over: np.ndarray, registers: np.ndarray) -> np.ndarray:
    has_bit = (registers[:, None] & _BITS) != 0
    return np.bitwise_xor.reduce(np.where(has_bit, over, np.uint32(0)), axis=1)


@functools.cache
def _next_of_pair() -> np.ndarray:
    """Return what becomes of the lower half of a register after two bytes, by what it is."""
    return _next(_next(np.arange(1 << 16, dtype=np.uint32)))
