"""Many clients at once, for seconds here and for minutes in benchmarks/serve.py."""

import asyncio

import httpx
import pytest
from benchmarks import serve

from eventually import eventually

pytestmark = pytest.mark.slow


def is_idle(url):
    health = httpx.get(f"{url.removesuffix('/v1')}/health", timeout=400).json()
    return (health["running"], health["waiting"]) == (0, 0)


def test_no_request_of_many_clients_is_lost_and_rows_are_free_after_them(tmp_path):
    with serve.serving(tmp_path) as url:
        each = asyncio.run(serve.load(url, 32, 5))
        found = serve.measured(each, 5)
        eventually(lambda: is_idle(url))
    assert found["lost"] == 0, [one for one in each if "lost" in one or not one["right"]]
    assert found["answered"] + found["left"] == found["requests"] >= 32
