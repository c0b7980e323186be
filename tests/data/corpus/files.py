"""Files with the same documents in every form."""

import bz2
import gzip
import io
import json
import lzma
import tarfile

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

TEXTS = [f"text {i}\nécrit " + "word " * (i % 17) for i in range(200)]

COMPRESSED = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def zstd(content):
    """Return what a program compresses in pieces: two frames, one after the other."""
    half = len(content) // 2
    return b"".join(
        pa.compress(part, codec="zstd", asbytes=True) for part in (content[:half], content[half:])
    )


COMPRESSED[".zst"] = zstd


def json_lines(texts):
    return "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)).encode()


def tar(texts, **options):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as archive:
        for i, text in enumerate(texts):
            content = text.encode()
            if i % 2:
                content = json.dumps({"text": text}).encode()
            for suffix, each in ((("json" if i % 2 else "txt"), content), ("jpg", b"\xff" * 700)):
                member = tarfile.TarInfo(f"{'long/' * 30 * (i % 3 == 0)}{i:06d}.{suffix}")
                member.size = len(each)
                archive.addfile(member, io.BytesIO(each))
    return out.getvalue()


def parquet(texts):
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"id": range(len(texts)), "text": texts}), out, row_group_size=64)
    return out.getvalue()


def arrow(texts, new=pa.ipc.new_stream):
    table, out = pa.table({"text": texts}), io.BytesIO()
    with new(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    return out.getvalue()


FORMS = {
    f"texts.jsonl{ending}": (lambda texts, c=c: c(json_lines(texts))) for ending, c in COMPRESSED.items()
}
FORMS |= {
    "texts.tar": tar,
    "gnu.tar.gz": lambda texts: gzip.compress(tar(texts, format=tarfile.GNU_FORMAT)),
    "texts.parquet": parquet,
    "stream.arrow": arrow,
    "file.arrow": lambda texts: arrow(texts, pa.ipc.new_file),
    "texts.txt.zst": lambda texts: zstd("<|end|>".join(texts).encode()),
}
