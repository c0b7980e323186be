import zlib

import numpy as np
import pytest

from meshwright.checkpoints._formats.readers._zarr2 import gzipped, inflated

PIECE = 1 << 20


@pytest.mark.parametrize("nbytes", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
@pytest.mark.parametrize("values", [1, 256])
def test_what_is_written_in_pieces_is_read_in_pieces(nbytes, values):
    plain = np.random.default_rng(0).integers(0, values, nbytes, np.uint8)
    written = b"".join(gzipped(plain.data, 1))
    assert zlib.decompress(written, zlib.MAX_WBITS | 16) == plain.tobytes()
    for form in (written, zlib.compress(plain)):
        np.testing.assert_array_equal(inflated(form, nbytes), plain)


@pytest.mark.parametrize(
    ("spoilt", "nbytes", "said"),
    [
        (lambda whole: whole[:-1], 2 * PIECE, "is cut off"),
        (lambda whole: whole[: len(whole) // 2], 2 * PIECE, "is cut off"),
        (lambda whole: whole + b"more", 2 * PIECE, "is cut off, or other data follows it"),
        (lambda whole: whole, 2 * PIECE - 1, f"more than {2 * PIECE - 1} bytes"),
        (lambda whole: whole, 2 * PIECE + 1, f"{2 * PIECE} bytes of values instead of {2 * PIECE + 1}"),
    ],
)
def test_what_is_not_all_there_or_too_much_is_refused(spoilt, nbytes, said):
    whole = b"".join(gzipped(np.random.default_rng(0).bytes(2 * PIECE), 1))
    with pytest.raises(ValueError, match=said):
        inflated(spoilt(whole), nbytes)
