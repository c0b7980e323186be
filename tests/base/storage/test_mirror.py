import tempfile
import threading

import pytest

from base.storage.stores import files, put
from disk import no_room_for_more_than
from meshwright.base._storage import _copies, _settings
from meshwright.base._storage._copies import mirrored
from meshwright.errors import MeshwrightError, UsageError


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(_copies, "RETRY_SECONDS", (0,))


@pytest.fixture
def puts(memory, monkeypatch):
    """The names of the files that are put, in order."""
    names, write = [], memory.write

    def write_and_tell(self, key, content):
        names.append(key.rpartition("/")[2])
        return write(self, key, content)

    monkeypatch.setattr(memory, "write", write_and_tell)
    return names


def test_what_is_written_is_there_at_the_end_with_all_names_as_they_are(memory, at):
    with mirrored(f"{at}[1]", (), pytest.fail) as mirror:
        (mirror.path / "logs").mkdir()
        (mirror.path / "logs/[0].log").write_text("said")
    assert files(f"{at}[1]") == {"logs/[0].log": b"said"}
    assert not mirror.path.exists()


def test_only_what_has_changed_is_put_in_the_order_in_which_it_was_changed(puts, at):
    with mirrored(at, (), pytest.fail) as mirror:
        del puts[:]  # of the file that shows that it can be written to
        for name in ("b", "a", "c.part"):
            (mirror.path / name).write_text(name)
            mirror.put()
        (mirror.path / "b").write_text("more")
    assert puts == ["b", "a", "b"]


def test_what_is_removed_here_is_removed_there_and_nothing_of_others(memory, at):
    put(f"{at}/outcome.json", b"{}")
    put(f"{at}/logs/process-00001.log", b"of another process")
    with mirrored(at, ["outcome.json"], pytest.fail) as mirror:
        (mirror.path / "outcome.json").unlink()
    assert list(files(at)) == ["logs/process-00001.log"]


def test_what_is_there_already_can_be_continued(memory, at, puts):
    put(f"{at}/logs/a", b"first\n")
    del puts[:]
    with mirrored(at, ["logs/a", "logs/b"], pytest.fail) as mirror:
        mirror.put()
        assert "a" not in puts
        with (mirror.path / "logs/a").open("a") as file:
            file.write("second\n")
    assert files(at) == {"logs/a": b"first\nsecond\n"}


def test_a_file_that_is_removed_meanwhile_is_no_failure_of_the_store(memory, at, monkeypatch):
    def remove_and_write(self, key, content, write=memory.write):
        if key.endswith("/a"):
            content.unlink()
        write(self, key, content)

    monkeypatch.setattr(memory, "write", remove_and_write)
    with mirrored(at, (), pytest.fail) as mirror:
        for name in ("a", "b"):
            (mirror.path / name).write_text(name)
        mirror.put()
        assert list(files(at)) == ["b"]


def test_a_thread_puts_what_has_changed_now_and_then(memory, at, monkeypatch):
    is_there, write = threading.Event(), memory.write

    def write_and_tell(self, key, content):
        write(self, key, content)
        if key.endswith("/a"):
            is_there.set()

    monkeypatch.setattr(memory, "write", write_and_tell)
    monkeypatch.setattr(_copies, "PUT_SECONDS", 0.001)
    with mirrored(at, (), pytest.fail) as mirror:
        (mirror.path / "a").write_text("a")
        assert is_there.wait(60)


def test_a_store_that_fails_for_a_while_is_told_of_once_and_nothing_is_lost(memory, at, failing):
    said = []
    with mirrored(at, (), said.append) as mirror:
        failing.append("out of order")
        for name in ("a", "b"):
            (mirror.path / name).write_text(name)
            mirror.put()
        assert [text.splitlines()[0] for text in said] == [f"cannot write {at}/a: out of order"]
        assert str(mirror.path) in said[0]
        failing.clear()
        mirror.put()
    assert said[1:] == [f"{at} can be written to again, and all files are there."]
    assert sorted(files(at)) == ["a", "b"]


def test_an_address_that_cannot_be_written_to_is_refused_at_once(at, failing, tmp_path):
    failing.append("forbidden")
    with pytest.raises(UsageError, match=f"cannot write {at}/.*: forbidden"), mirrored(at, (), print):
        pytest.fail("it was opened")
    assert not list((tmp_path / "temporary").iterdir())


def test_what_cannot_be_put_in_the_end_is_an_error_and_is_kept(at, failing, impatient):
    opened = mirrored(at, (), pytest.fail)
    mirror = opened.__enter__()
    (mirror.path / "a").write_text("all there is")
    failing.append("out of order")
    with pytest.raises(MeshwrightError, match=f"The files that are missing there are in {mirror.path}"):
        opened.__exit__(None, None, None)
    assert (mirror.path / "a").read_text() == "all there is"


@pytest.mark.parametrize("faults", [[], ["out of order"]])
def test_an_error_goes_on_with_all_put_or_is_told_where_the_rest_is(memory, at, failing, impatient, faults):
    said = []

    def fail():
        with mirrored(at, (), said.append) as mirror:
            (mirror.path / "a").write_text("a")
            failing.extend(faults)
            raise OverflowError(mirror.path)

    with pytest.raises(OverflowError) as caught:
        fail()
    assert list(files(at)) == ([] if faults else ["a"])
    assert [f"are in {caught.value}:" in text for text in said] == [True] * len(faults)


def test_a_store_that_does_not_answer_is_told_of_in_time(s3_run, s3_faults, impatient, monkeypatch):
    said = []
    monkeypatch.setitem(_settings.IMPATIENCE, "stalled", 0.2)
    with mirrored(s3_run, (), said.append) as mirror:
        s3_faults.fault = lambda request: "hang"
        (mirror.path / "a").write_text("a")
        mirror.put()
        assert said[0].startswith(f"cannot write {s3_run}/a: the store does not answer\n")
        s3_faults.fault = lambda request: None
    assert said[1:] == []


def test_a_machine_without_room_for_what_is_continued_says_so(memory, at, tmp_path):
    put(f"{at}/metrics.jsonl", b"{} " * 10)
    wanted = r"(?s)the local disk, and \S+/meshwright-run-\S+ cannot be written to: File too.*TMPDIR"
    mirror = mirrored(at, ["metrics.jsonl"], print)
    with no_room_for_more_than(10), pytest.raises(UsageError, match=wanted):
        mirror.__enter__()
    assert not list((tmp_path / "temporary").iterdir())


def test_a_machine_without_temporary_directory_says_so(at, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="a temporary directory cannot be written to: No such file"):
        mirrored(at, (), print).__enter__()
