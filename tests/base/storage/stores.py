"""Object stores as fixtures: an S3 server and a fake of Google's, on loopback, and the one in memory."""

import contextlib
import itertools
import logging
import tempfile
import urllib.request

import pytest

from base.storage.gcs import FakeGcs
from base.storage.proxy import FaultyProxy
from meshwright.base._storage import _obstore, _settings
from meshwright.base._storage._path import location

numbers = itertools.count()


@pytest.fixture(scope="session")
def s3():
    """Return the URL of an S3 server with one bucket."""
    from moto.server import ThreadedMotoServer  # takes long to load

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT")).close()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def gcs():
    """Return a server that speaks as Google's does."""
    with FakeGcs() as server:
        yield server


@pytest.fixture
def s3_run(s3, monkeypatch):
    """Return an address in S3 at which there is nothing yet, with the environment set so that it is found."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very secret")
    return f"s3://bucket/run-{next(numbers)}"


@pytest.fixture
def s3_client(s3, s3_run):
    """Return a client of AWS's own, which writes any key."""
    import boto3

    return boto3.client("s3", endpoint_url=s3, region_name="us-east-1")


@pytest.fixture
def s3_faults(s3, s3_run, monkeypatch):
    """Return a proxy before the S3 server, on the way to `s3_run`; retries come soon."""
    monkeypatch.setitem(_settings.PATIENCE, "first", 0.01)
    with FaultyProxy(s3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def gcs_run(gcs, monkeypatch):
    """Return such an address in Google's storage."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    monkeypatch.setattr(gcs, "fails", lambda number: None)
    monkeypatch.setattr(gcs, "latency_seconds", 0)
    return f"gs://bucket/run-{next(numbers)}"


@pytest.fixture(params=["s3", "gs", "memory"])
def run(request):
    """Return such an address in each kind of store."""
    match request.param:
        case "s3":
            return request.getfixturevalue("s3_run")
        case "gs":
            return request.getfixturevalue("gcs_run")
    return f"memory://tests/run-{next(numbers)}"


def objects(run):
    """Return the keys of all objects below an address, from there on."""
    return [key.removeprefix(location(run).key + "/") for key in location(run).below()]


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """The store in memory; temporary directories are made in `tmp_path / "temporary"`."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return _obstore.Obstore


@pytest.fixture
def at(memory):
    """An address in memory at which there is nothing yet."""
    return f"memory://addresses/run-{next(numbers)}"


@pytest.fixture
def failing(memory, monkeypatch):
    """A list: while something is in it, nothing can be put but checkpoints."""
    faults, write = [], memory.write

    def write_or_fail(self, key, content):
        if faults and "checkpoints/" not in key:
            raise LookupError(faults[0])
        return write(self, key, content)

    monkeypatch.setattr(memory, "write", write_or_fail)
    return faults


def put(address, content):
    """Put an object at an address."""
    location(address).put(content)


def files(address):
    """Return the contents by relative name of what is at an address; what is removed just now is not."""
    found = {}
    for name in objects(address):
        with contextlib.suppress(FileNotFoundError):
            found[name] = (location(address) / name).read_bytes()
    return found
