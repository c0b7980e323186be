"""Stores that fsspec knows, as fixtures."""

import itertools
import tempfile

import fsspec
import pytest

numbers = itertools.count()


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A file system in memory; temporary directories are made in `tmp_path / "temporary"`."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()


@pytest.fixture
def at(memory):
    """An address at which there is nothing yet, in either of the memories that are called so."""
    return f"memory://addresses/run-{next(numbers)}"


@pytest.fixture
def failing(memory, monkeypatch):
    """A list: while something is in it, nothing can be put."""
    faults, put = [], type(memory).put_file

    def put_file(self, *arguments, **more):
        if faults:
            raise LookupError(faults[0])
        return put(self, *arguments, **more)

    monkeypatch.setattr(type(memory), "put_file", put_file)
    return faults


def files(memory, address):
    """Return the contents by relative name of what is at an address."""
    root = address.removeprefix("memory:/")
    return {path.removeprefix(f"{root}/"): memory.cat_file(path) for path in memory.find(root)}
