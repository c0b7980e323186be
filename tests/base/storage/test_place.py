from pathlib import Path

import pytest

from base.storage.stores import put
from meshwright.base._storage._copies import read_text
from meshwright.base._storage._local_paths import is_address, join, local_path
from meshwright.base._storage._path import location
from meshwright.errors import MeshwrightError, UsageError


@pytest.mark.parametrize("place", ["s3://bucket/run", "memory://x", "hf://datasets/a"])
def test_what_names_a_store_is_an_address(place):
    assert is_address(place)
    assert join(f"{place}/", "logs/a[0].log") == f"{place}/logs/a[0].log"


@pytest.mark.parametrize("place", ["runs/x", "/tmp/run", "~/run", "file:///tmp/run", Path("runs")])
def test_a_path_is_no_address(place):
    assert not is_address(place)
    assert join(place, "a") == str(local_path(place) / "a")


def test_a_home_is_resolved_and_never_made_a_folder_of_that_name(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_path("~/runs") == tmp_path / "runs"
    assert local_path("file:///tmp/a[1]") == Path("/tmp/a[1]")


def test_a_small_file_is_read_from_anywhere(memory, at, tmp_path):
    for place in (at, str(tmp_path)):
        with pytest.raises(FileNotFoundError):
            read_text(join(place, "[a].txt"))
    put(join(at, "[a].txt"), "é".encode())
    (tmp_path / "[a].txt").write_text("é", encoding="utf-8")
    assert read_text(join(at, "[a].txt")) == read_text(join(tmp_path, "[a].txt")) == "é"


def test_a_store_that_cannot_be_read_is_not_one_without_the_file(memory, at, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("forbidden")

    monkeypatch.setattr(memory, "read", refuse)
    with pytest.raises(MeshwrightError, match=f"cannot read {at}/a: forbidden"):
        read_text(join(at, "a"))


def test_an_address_of_no_known_kind_says_what_to_install():
    with pytest.raises(UsageError, match=r"nowhere://x cannot be opened: Protocol not known.*\n.*fsspec"):
        location("nowhere://x")


@pytest.mark.parametrize("address", ["s3://", "s3:///", "gs://", "memory://"])
def test_an_address_without_a_bucket_says_what_one_looks_like(address):
    with pytest.raises(UsageError, match=rf"^{address} has no bucket: expected \w+://bucket/path\.$"):
        location(address)


def test_slashes_too_many_name_the_same_place():
    assert str(location("memory://a//b///c/")) == str(location("memory://a/b/c")) == "memory://a/b/c"


@pytest.mark.parametrize("name", ["../b", "c/../../b", "/b"])
def test_no_name_leaves_the_place(name):
    with pytest.raises(UsageError, match="leaves the directory"):
        location("memory://a/run") / name
