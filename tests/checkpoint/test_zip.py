import zipfile

from meshwright.checkpoint._format._zip import plan, write_directory, write_entry


def test_entries_may_lie_beyond_four_gigabytes(tmp_path):
    hole, after = plan([("hole", 5 << 30), ("after/ünïcode", 5)])
    with (tmp_path / "large.zip").open("wb") as file:  # a sparse file: what is not written takes no room
        crc = write_entry(file, after, b"hello")
        write_entry(file, hole._replace(size=0), b"")
        size = write_directory(file, [hole, after], [0, crc])
    with zipfile.ZipFile(tmp_path / "large.zip") as archive:
        assert archive.read("after/ünïcode") == b"hello"
        assert archive.getinfo("hole").file_size == 5 << 30
    assert (tmp_path / "large.zip").stat().st_size == size
