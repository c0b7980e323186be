import contextlib

import pytest

from base.storage.stores import files, objects, put
from meshwright.base._storage._copies import local_copy, put_at
from meshwright.base._storage._path import location
from meshwright.errors import MeshwrightError


def test_what_is_made_is_put_with_all_names_as_they_are(memory, at):
    with put_at(f"{at}[1]") as directory:
        for name in ("a", "b[0]/*.txt", "b[0]/?"):
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(name)
    assert files(f"{at}[1]") == {name: name.encode() for name in ("a", "b[0]/*.txt", "b[0]/?")}
    assert not directory.exists()


def test_after_an_error_nothing_is_put(memory, at):
    with contextlib.suppress(OverflowError), put_at(at) as directory:
        (directory / "half").write_text("")
        raise OverflowError
    assert not files(at)
    assert not directory.exists()


def test_what_cannot_be_put_is_an_error_that_names_the_address(failing, at):
    failing.append("no space")
    with pytest.raises(MeshwrightError, match=f"cannot write {at}/a: no space"), put_at(at) as made:
        (made / "a").write_text("")


def test_a_copy_has_all_but_the_checkpoints(memory, at):
    for name in ("a", "logs/[0].log", "checkpoints/step_1/data", "logs/checkpoints/b"):
        put(f"{at}/{name}", name.encode())
    put(f"{at}-2/c", b"of another run")
    with local_copy(f"{at}/") as directory:
        found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
        assert (directory / "logs/[0].log").read_text() == "logs/[0].log"
    assert found == {"a", "logs/[0].log", "logs/checkpoints/b"}
    assert not directory.exists()


def test_a_store_that_cannot_be_read_is_not_an_empty_one(memory, at, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("forbidden")

    monkeypatch.setattr(memory, "children", refuse)
    with pytest.raises(MeshwrightError, match=f"cannot list {at}: forbidden"), local_copy(at):
        pass


def test_a_copy_of_some_is_as_old_as_they_are(memory, at):
    put(f"{at}/old.log", b"")
    put(f"{at}/new.txt", b"")
    with local_copy(at, lambda name: name.endswith(".log")) as directory:
        assert [path.name for path in directory.iterdir()] == ["old.log"]
        copied = (directory / "old.log").stat().st_mtime
    assert copied == pytest.approx(location(f"{at}/old.log").look().modified)


def test_a_copy_of_a_file_is_a_directory_with_it_and_of_nothing_an_empty_one(memory, at):
    put(f"{at}/a.txt", b"a")
    with local_copy(f"{at}/a.txt") as directory:
        assert (directory / "a.txt").read_text() == "a"
    with local_copy(f"{at}/b.txt") as directory:
        assert not list(directory.iterdir())


def test_a_place_on_this_machine_is_its_own_copy(tmp_path):
    with local_copy(tmp_path) as copied, put_at(f"file://{tmp_path}") as made:
        assert copied == made == tmp_path


KEYS = {
    "../../PWNED": "no relative path of a file",
    "logs/../../../PWNED": "no relative path of a file",
    "logs//PWNED": "no relative path of a file",
    "/PWNED": "no relative path of a file",
    "..\\PWNED": "no relative path of a file",
    "n" * 300: "longer than 255 bytes",
}


@pytest.mark.parametrize("key", [*KEYS, "all"])
def test_nothing_is_written_outside_by_the_keys_of_a_store(s3_client, s3_run, tmp_path, caplog, memory, key):
    prefix = s3_run.removeprefix("s3://bucket/")
    for name in ("metrics.jsonl", ".hidden", "logs/a", *(KEYS if key == "all" else [key])):
        s3_client.put_object(Bucket="bucket", Key=f"{prefix}/{name}", Body=b"x")
    before = set(tmp_path.rglob("*"))
    with local_copy(s3_run) as directory:
        found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
        outside = {path for path in tmp_path.rglob("*") if not path.is_relative_to(directory)}
    assert found == {"metrics.jsonl", ".hidden", "logs/a"}
    assert outside == before
    assert "is left out: " in caplog.text
    assert KEYS.get(key, "") in caplog.text


@pytest.mark.slow
def test_among_more_keys_than_a_store_lists_at_once_all_but_the_wrong_one_are_found(
    s3_client, s3_run, caplog
):
    prefix, names = s3_run.removeprefix("s3://bucket/"), [f"a+b {number:04d}%20é" for number in range(1005)]
    s3_client.put_object(Bucket="bucket", Key=f"{prefix}//wrong", Body=b"x")
    for name in names:
        (location(s3_run) / name).put(b"x")
    assert objects(s3_run) == names
    assert [path.name for path in location(s3_run).iterdir()] == names
    assert caplog.text.count("is left out") == 2


def test_of_another_store_a_key_that_spoils_a_listing_is_named(gcs, gcs_run):
    gcs.objects[f"{gcs_run.removeprefix('gs://bucket/')}/logs//x"] = b"", 1
    with (
        pytest.raises(MeshwrightError, match=r"logs//.*contained empty path segment\. Delete that key"),
        local_copy(gcs_run),
    ):
        pass


def test_a_folder_of_a_store_is_no_reason_to_read_nothing(s3_run, s3_client):
    prefix = s3_run.removeprefix("s3://bucket/")
    for key in ("metrics.jsonl", "folder/", "f", "f/g"):
        s3_client.put_object(Bucket="bucket", Key=f"{prefix}/{key}", Body=b"x")
    with local_copy(s3_run) as directory:
        found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert "metrics.jsonl" in found
    assert found <= {"metrics.jsonl", "f", "f/g"}
