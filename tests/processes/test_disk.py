import pytest

from meshwright.errors import MeshwrightError
from meshwright.processes import _internal as processes


def test_one_process_shares_with_itself_and_leaves_nothing(tmp_path):
    assert processes.is_shared(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(MeshwrightError, match="FileNotFoundError"):
        processes.is_shared(tmp_path / "missing")
