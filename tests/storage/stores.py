"""Object stores on loopback, as fixtures: an S3 server, a fake of Google's, and the one in memory."""

import itertools
import logging
import urllib.request

import fsspec
import pytest

from meshwright.storage import _kvstore
from meshwright.storage._object_path import location
from storage.gcs import FakeGcs
from storage.proxy import FaultyProxy

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
def s3_faults(s3, s3_run, monkeypatch):
    """Return a proxy before the S3 server, on the way to `s3_run`; retries come soon."""
    monkeypatch.setitem(_kvstore._RETRIES, "initial_delay", "10ms")
    clients = fsspec.get_filesystem_class("s3")  # of which the last is kept, with the endpoint of its time
    with FaultyProxy(s3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        clients.clear_instance_cache()
        yield proxy
        clients.clear_instance_cache()


@pytest.fixture
def gcs_run(gcs, monkeypatch):
    """Return such an address in Google's storage."""
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", gcs.url)
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
