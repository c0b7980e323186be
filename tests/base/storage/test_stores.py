"""Stores of every kind behind one kind of path, and what they are reached with."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import obstore
import pytest

import meshwright as mw
from base.storage.stores import objects
from meshwright.base._storage._copies import read_text
from meshwright.base._storage._path import ObjectPath, location
from meshwright.errors import MeshwrightError, UsageError


def test_what_is_in_a_store_is_listed_read_and_removed(run):
    path = location(run)
    for name in ("a", "[b]/c.txt", "[b]/d e.txt", "é%20+/~"):
        (path / name).put(name.encode())
    assert objects(run) == sorted(["a", "[b]/c.txt", "[b]/d e.txt", "é%20+/~"])
    assert [each.name for each in path.iterdir()] == sorted(["a", "[b]", "é%20+"])
    assert [str(each) for each in path.glob("*/*.txt")] == [f"{run}/[b]/c.txt", f"{run}/[b]/d e.txt"]
    assert (path / "é%20+/~").read_bytes() == "é%20+/~".encode()
    assert ((path / "a").look().nbytes, (path / "b").look(), (path / "[b]").is_dir()) == (1, None, True)
    path.remove_tree("*.txt")
    assert objects(run) == ["a", "é%20+/~"]
    (path / "nothing").unlink()


def test_ranges_are_read_as_far_as_the_object_goes(run):
    path = location(run) / "a"
    path.put(b"0123456789")
    read = lambda first, last: path.answer_with_size(path.request(first, last))
    assert (bytes(read(2, 4)[0]), read(2, 4)[1]) == (b"23", 10)
    assert [bytes(read(*part)[0]) for part in ((8, 99), (10, 12), (50, 60), (3, 3))] == [b"89", b"", b"", b""]
    assert location(f"{run}/b").answer_with_size(location(f"{run}/b").request(0, 1)) is None


def test_an_object_that_is_sent_in_parts_is_whole(run):
    content = np.random.default_rng(0).bytes((40 << 20) + 5)
    (location(run) / "large").put(content)
    assert (location(run) / "large").read_bytes() == content


def test_of_many_that_create_an_object_one_wins(run):
    with ThreadPoolExecutor(16) as threads:
        won = list(threads.map(lambda n: (location(run) / "one").create(b"%d" % n), range(16)))
    assert won.count(True) == 1
    assert (location(run) / "one").read_bytes() == b"%d" % won.index(True)


@pytest.mark.parametrize(
    "fault", ["after 503", "after drop", "after 409", "after 412", "after hang", 409, 412]
)
def test_whoever_created_an_object_knows_it_though_the_answer_was_lost(s3_faults, s3_run, monkeypatch, fault):
    monkeypatch.setattr(
        "meshwright.base._storage._settings.PATIENCE", mw.base._storage._settings.PATIENCE | {"stalled": 0.3}
    )
    path, seen = location(s3_run) / "one", []
    s3_faults.fault = lambda request: (
        fault if request.method == "PUT" and not seen and not seen.append(1) else None
    )
    assert path.create(b"mine")
    assert not path.create(b"another's")
    assert path.read_bytes() == b"mine"


def test_an_answer_that_is_cut_off_is_asked_for_again(s3_faults, s3_run):
    content, path = np.random.default_rng(0).bytes(1 << 20), location(s3_run) / "a"
    path.put(content)
    faults = ["cut", "cut"]
    s3_faults.fault = lambda request: faults.pop() if faults and request.method == "GET" else None
    assert path.read_bytes() == content
    faults.extend(["cut", "cut"])
    assert path.answer(path.request(5, 1 << 19)) == content[5 : 1 << 19]
    s3_faults.fault = lambda request: "cut" if request.method == "GET" else None
    with pytest.raises(MeshwrightError, match="cannot read s3://"):
        path.impatient().read_bytes()


def test_a_store_that_refuses_for_ever_is_told_of(s3_faults, s3_run):
    s3_faults.fault = lambda request: 412 if request.method == "PUT" else None
    with pytest.raises(MeshwrightError, match="says that it exists, yet it cannot be read"):
        (location(s3_run) / "one").create(b"mine")


def test_a_store_that_creates_an_object_twice_takes_no_checkpoints(s3_faults, s3_run, monkeypatch):
    forward = s3_faults.forward

    def forward_unconditionally(method, path, headers, body):
        kept = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
        return forward(method, path, kept, body)

    monkeypatch.setattr(s3_faults, "forward", forward_unconditionally)
    with pytest.raises(UsageError, match="does not refuse to create an object that exists"):
        mw.Checkpoints(s3_run).__enter__()


def test_two_openings_of_a_memory_share_it():
    location("memory:///shared/a").put(b"x")
    assert location("memory:///shared/a").read_bytes() == b"x"
    assert location("memory://other/shared/a").look() is None


@pytest.fixture
def azure(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "dmVyeSBzZWNyZXQ=")


@pytest.mark.parametrize("scheme", ["az", "abfs"])
def test_a_container_of_azure_is_opened_with_the_account_of_the_environment(azure, scheme):
    path = location(f"{scheme}://container/run") / "a"
    assert (str(path), path.key) == (f"{scheme}://container/run/a", "run/a")
    assert mw.Checkpoints(path.parent).directory.store.creates
    url = obstore.sign(path.store._store, "GET", path.key, timedelta(seconds=1))
    assert url.startswith("https://someone.blob.core.windows.net/container/run/a?")


def test_azure_without_an_account_says_what_to_set(azure, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(UsageError, match=r"az://container cannot be opened: .* Set AZURE_STORAGE_ACC"):
        location("az://container/run")


@pytest.fixture
def profile(s3_run, tmp_path, monkeypatch):
    """Return a function that writes AWS's file of credentials; the environment has none."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return (tmp_path / "credentials").write_text


def test_a_profile_of_aws_is_signed_in_with(profile, s3_run, monkeypatch):
    profile("[other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = very%secret\n")
    monkeypatch.setenv("AWS_PROFILE", "other")
    location(s3_run).put(b"x")
    assert "AKIAOTHER" in str(location(s3_run).store._store.config)


def test_a_profile_without_keys_says_how_to_sign_in(profile, s3_run, monkeypatch):
    profile("[other]\nsso_session = x\n")
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(UsageError, match=r"the AWS profile other has no keys .*aws configure export"):
        location(s3_run)


def test_no_secret_of_the_environment_is_in_an_error(s3_faults, s3_run, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=hush")
    s3_faults.fault = lambda request: 403
    s3_faults.forward = None
    path = location(s3_run)
    with pytest.raises(
        MeshwrightError, match=r"cannot write s3://bucket/run-\d+: HTTP 403 Forbidden"
    ) as error:
        path.put(b"x")
    assert not [secret for secret in ("very secret", "hush", "\n") if secret in str(error.value)]


def test_the_environment_stays_as_it_is(run):
    before = dict(os.environ)
    location(run).put(b"x")
    assert dict(os.environ) == before


class WebServer(SimpleHTTPRequestHandler):
    """Python's own, which knows no ranges, with ranges."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        wanted, path = self.headers.get("Range"), Path(self.translate_path(self.path))
        if not wanted or not path.is_file():
            super().do_GET()
            return
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        content = path.read_bytes()
        self.send_response(206)
        self.send_header("Content-Length", str(len(content[first : last + 1])))
        self.send_header("Content-Range", f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}")
        self.send_header("Last-Modified", self.date_time_string())
        self.end_headers()
        self.wfile.write(content[first : last + 1])


@pytest.fixture
def web(tmp_path):
    """Return the address of a plain web server, and the directory that it shows."""
    (tmp_path / "shown").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(WebServer, directory=tmp_path / "shown")) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path / "shown"
        server.shutdown()


def test_files_of_a_web_server_are_read(web):
    address, directory = web
    (directory / "a.txt").write_text("hello")
    assert read_text(f"{address}/a.txt") == "hello"
    with pytest.raises(FileNotFoundError):
        read_text(f"{address}/b.txt")


def test_a_checkpoint_of_a_web_server_is_read(web):
    address, directory = web
    with mw.Checkpoints(directory) as checkpoints:
        checkpoints.save(1, {"x": np.arange(5)})
    source = mw.checkpoints.open_source(f"{address}/step_00000001")
    assert (mw.restore(source, {"x": np.zeros(5, int)})["x"] == np.arange(5)).all()
    with pytest.raises(UsageError, match="cannot hold checkpoints"):
        mw.Checkpoints(address)


def test_a_checkpoint_is_read_through_fsspec_and_none_is_saved(tmp_path):
    with mw.Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(1, {"x": np.arange(5)})
    address = f"local://{tmp_path}/run"
    assert isinstance(location(address), ObjectPath)
    assert (
        mw.restore(mw.checkpoints.open_source(address), {"x": np.zeros(5, int)})["x"] == np.arange(5)
    ).all()
    with pytest.raises(UsageError, match="cannot hold checkpoints"):
        mw.Checkpoints(address)
