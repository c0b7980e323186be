"""Numbers of seven bits to a byte, the lowest first, of which all but the last have the eighth bit set."""


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position`, and where it ends.

    Raises:
      ValueError: The data ends before it does.
    """
    number = shift = 0
    while position < len(data):
        octet = data[position]
        number |= (octet & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if octet < 0x80:
            return number, position
    raise ValueError("it ends within a number")
