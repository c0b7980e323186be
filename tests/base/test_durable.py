"""A file that others replaced by a link, a pipe or a device is not opened."""

import os

import pytest

from meshwright.base._files import open_ordinary
from meshwright.processes._lock import is_locked, lock_directory


@pytest.fixture(params=["link", "pipe", "device"])
def planted(request, tmp_path):
    place = tmp_path / "here" / "file"
    place.parent.mkdir()
    if request.param == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero" if request.param == "device" else tmp_path / "elsewhere")
    return place


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_APPEND])
def test_what_is_no_ordinary_file_is_not_opened(flags, planted, tmp_path):
    with pytest.raises(OSError, match="a link, a pipe or a device"):
        open_ordinary(planted, flags)
    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_is_not_held_by_a_link_or_a_pipe(planted, tmp_path):
    with pytest.raises(OSError, match="a link, a pipe or a device"):
        lock_directory(planted)
    assert not is_locked(planted)
    assert not (tmp_path / "elsewhere").exists()
