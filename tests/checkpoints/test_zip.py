import zipfile

from meshwright.base._checksums import crc32
from meshwright.checkpoints._format._container import central_directory, local_header, placed


def test_entries_may_lie_beyond_four_gigabytes(tmp_path):
    hole, after = entries = placed([("hole", 5 << 30), ("after/ünïcode", 5)])
    crcs = [0, crc32(b"hello")]
    with (tmp_path / "large.zip").open("wb") as file:  # a sparse file: what is not written takes no room
        file.write(local_header(hole, 0))
        file.seek(after.header_offset)
        file.write(local_header(after, crcs[1]) + b"hello" + central_directory(entries, crcs)[0])
    with zipfile.ZipFile(tmp_path / "large.zip") as archive:
        assert archive.read("after/ünïcode") == b"hello"
        assert archive.getinfo("hole").file_size == 5 << 30
