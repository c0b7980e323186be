import contextlib
import os

import numpy as np
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.base._storage._local_paths import user_cache
from meshwright.cli import main
from meshwright.data._corpus._store import tokenized
from meshwright.errors import UsageError
from meshwright.lm._generation._text import Bytes


@pytest.fixture
def no_home(tmp_path, monkeypatch):
    """A home in which nothing can be made; the temporary folder is returned."""
    (tmp_path / "home").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_a_home_that_cannot_be_written_is_a_warning_and_the_run_trains(
    no_home, tmp_path, caplog, compiled_for_users
):
    assert mw.run(experiment(tmp_path / "run", max_steps=1)).step == 1
    (kept,) = no_home.iterdir()
    assert list(kept.glob("compile_cache/*/*-cache"))
    assert kept.stat().st_mode & 0o077 == 0
    (warning,) = [each for each in caplog.messages if "XDG_CACHE_HOME" in each]
    assert f"{tmp_path}/home/.cache" in warning
    assert str(kept) in warning


def test_tokens_are_kept_where_a_home_cannot_be_written(no_home, tmp_path):
    (tmp_path / "a.txt").write_text("abc")
    with contextlib.closing(tokenized(tmp_path / "a.txt", Bytes())) as store:
        np.testing.assert_array_equal(store.block(0).tokens, [97, 98, 99])
        assert no_home in store.directory.parents


def test_doctor_says_where_the_cache_is(no_home, capsys):
    assert main(["doctor"]) == 0
    assert f"cache       ok, {no_home}/meshwright-cache-{os.getuid()}" in capsys.readouterr().out


def test_a_user_without_a_home_has_a_cache(no_home, monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as in a container whose user has no name
    assert user_cache() == no_home / f"meshwright-cache-{os.getuid()}"


@pytest.mark.parametrize("planted", ["link", "file"])
def test_a_cache_that_somebody_planted_is_not_used(no_home, tmp_path, caplog, planted, compiled_for_users):
    place = no_home / f"meshwright-cache-{os.getuid()}"
    place.symlink_to(tmp_path) if planted == "link" else place.touch()
    with pytest.raises(UsageError, match=f"{place} (is a link|cannot be made)"):
        user_cache()
    assert mw.run(experiment(tmp_path / "run", max_steps=1)).step == 1
    assert "Programs are compiled again at each start" in caplog.text
    assert not (tmp_path / "compile_cache").exists()


def test_a_store_of_tokens_that_cannot_be_made_is_refused_with_what_to_try(no_home, tmp_path):
    (tmp_path / "a.txt").write_text("abc")
    with pytest.raises(UsageError, match=r"cannot keep tokens in .*home/x.*store="):
        tokenized(tmp_path / "a.txt", Bytes(), store=tmp_path / "home/x")
