"""TensorFlow's checkpoints, written byte by byte: `tensor_bundle.proto` in a LevelDB table."""

import struct

import numpy as np

DTYPES = {"float32": 1, "int32": 3, "int64": 9, "bfloat16": 14}


def varint(number):
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def crc32c(data):
    """One bit after the other, as the definition has it."""
    register = 0xFFFFFFFF
    for octet in data:
        register ^= octet
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def field(number, value):
    """A field of a protocol buffer: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    return varint(number << 3 | 2) + varint(len(value)) + value


def literal(content):
    """Snappy that repeats nothing."""
    pieces = [content[start : start + 60] for start in range(0, len(content), 60)]
    return varint(len(content)) + b"".join(bytes([len(piece) - 1 << 2]) + piece for piece in pieces)


def block(entries, compress):
    out, before = b"", b""
    for number, (key, value) in enumerate(entries):
        same = [a == b for a, b in zip(key, before, strict=False)]
        shared = 0 if number % 4 == 0 else [*same, False].index(False)
        rest = key[shared:]
        out += varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value
        before = key
    out += struct.pack("<II", 0, 1)
    stored = (literal(out) if compress == 1 else out) + bytes([compress])
    return stored + struct.pack("<I", masked(crc32c(stored)))


def table(entries, compress=False, per_block=5):
    """A LevelDB table of several blocks."""
    entries, out, index = sorted(entries.items()), b"", []
    for start in range(0, len(entries), per_block):
        some = entries[start : start + per_block]
        stored = block(some, compress)
        index.append((some[-1][0], varint(len(out)) + varint(len(stored) - 5)))
        out += stored
    handles = b""
    for rest in ([], index):  # of metadata, of which there is none, and the index
        stored = block(rest, compress)
        handles += varint(len(out)) + varint(len(stored) - 5)
        out += stored
    return out + handles.ljust(40, b"\0") + 0xDB4775248B80FB57.to_bytes(8, "little")


def write(prefix, variables, *, shards=1, compress=False, more=None, checksums=True):
    """Write variables in turn into the shards, and the index."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    contents = [b""] * shards
    entries = {b"": field(1, shards), **(more or {})}
    for number, (name, array) in enumerate(variables.items()):
        shard, data = number % shards, np.asarray(array).tobytes()
        shape = b"".join(field(2, field(1, size)) for size in array.shape)
        entries[name.encode()] = (
            field(1, DTYPES[array.dtype.name])
            + field(2, shape)
            + field(3, shard)
            + field(4, len(contents[shard]))
            + field(5, len(data))
        )
        if checksums:
            entries[name.encode()] += varint(6 << 3 | 5) + struct.pack("<I", masked(crc32c(data)))
        contents[shard] += data
    for shard, content in enumerate(contents):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(entries, compress))
    (prefix.parent / "checkpoint").write_text(f'model_checkpoint_path: "/elsewhere/{prefix.name}"\n')
    return prefix
