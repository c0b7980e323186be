import contextlib

import pytest

from addresses.stores import files
from meshwright.addresses import local_copy, put_at
from meshwright.errors import MeshwrightError


def test_what_is_made_is_put_with_all_names_as_they_are(memory, at):
    with put_at(f"{at}[1]") as directory:
        for name in ("a", "b[0]/*.txt", "b[0]/?"):
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(name)
    assert files(memory, f"{at}[1]") == {name: name.encode() for name in ("a", "b[0]/*.txt", "b[0]/?")}
    assert not directory.exists()


def test_after_an_error_nothing_is_put(memory, at):
    with contextlib.suppress(OverflowError), put_at(at) as directory:
        (directory / "half").write_text("")
        raise OverflowError
    assert not files(memory, at)
    assert not directory.exists()


def test_what_cannot_be_put_is_an_error_that_names_the_address(failing, at):
    failing.append("no space")
    with pytest.raises(MeshwrightError, match=f"{at} cannot be written to: no space"), put_at(at) as made:
        (made / "a").write_text("")


def test_a_copy_has_all_but_the_checkpoints(memory, at):
    for name in ("a", "logs/[0].log", "checkpoints/step_1/data", "logs/checkpoints/b"):
        memory.pipe_file(f"{at}/{name}", name.encode())
    memory.pipe_file(f"{at}-2/c", b"of another run")
    with local_copy(f"{at}/") as directory:
        found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
        assert (directory / "logs/[0].log").read_text() == "logs/[0].log"
    assert found == {"a", "logs/[0].log", "logs/checkpoints/b"}
    assert not directory.exists()


def test_a_store_that_cannot_be_read_is_not_an_empty_one(memory, at, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("forbidden")

    monkeypatch.setattr(type(memory), "ls", refuse)
    with pytest.raises(MeshwrightError, match=f"{at} cannot be read: forbidden"), local_copy(at):
        pass


def test_a_copy_of_some_is_as_old_as_they_are(memory, at):
    memory.pipe_file(f"{at}/old.log", b"")
    memory.pipe_file(f"{at}/new.txt", b"")
    with local_copy(at, lambda name: name.endswith(".log")) as directory:
        assert [path.name for path in directory.iterdir()] == ["old.log"]
        copied = (directory / "old.log").stat().st_mtime
    assert copied == pytest.approx(memory.modified(f"{at}/old.log").timestamp())


def test_a_copy_of_a_file_is_a_directory_with_it_and_of_nothing_an_empty_one(memory, at):
    memory.pipe_file(f"{at}/a.txt", b"a")
    with local_copy(f"{at}/a.txt") as directory:
        assert (directory / "a.txt").read_text() == "a"
    with local_copy(f"{at}/b.txt") as directory:
        assert not list(directory.iterdir())


def test_a_place_on_this_machine_is_its_own_copy(tmp_path):
    with local_copy(tmp_path) as copied, put_at(f"file://{tmp_path}") as made:
        assert copied == made == tmp_path


def test_nothing_is_written_outside_by_the_keys_of_a_store(memory, at, tmp_path, caplog):
    root = at.removeprefix("memory:/")
    keys = ("../../PWNED", "logs/../../../PWNED", "logs//PWNED", "/PWNED", "a\0b", "n" * 300, "..\\PWNED")
    for key in keys:
        memory.store[f"{root}/{key}"] = type(memory)().open(f"{at}/ok", "wb")
    memory.pipe_file(f"{at}/metrics.jsonl", b"of the run")
    before = set(tmp_path.rglob("*"))
    with local_copy(at) as directory:
        found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
        outside = {path for path in tmp_path.rglob("*") if not path.is_relative_to(directory)}
    assert found <= {"metrics.jsonl", "ok"}
    assert (outside - before, "metrics.jsonl" in found) == (set(), True)
    assert "is left out: as a file it would be elsewhere" in caplog.text


def test_a_key_with_two_slashes_or_a_folder_of_a_store_is_no_reason_to_read_nothing(s3_run, s3):
    import boto3  # the memory's keys are made single

    client, prefix = boto3.client("s3", endpoint_url=s3), s3_run.removeprefix("s3://bucket/")
    for key in ("metrics.jsonl", "logs//b.log", "logs/../../../PWNED", "folder/", "f", "f/g"):
        client.put_object(Bucket="bucket", Key=f"{prefix}/{key}", Body=b"x")
    with local_copy(s3_run) as directory:
        found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert "metrics.jsonl" in found
    assert found <= {"metrics.jsonl", "f", "f/g"}
