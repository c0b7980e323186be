"""Saves and restores while requests to an S3 server fail, are slow, or are lost on their way."""

import time

import numpy as np
import pytest

from base.storage.stores import objects
from meshwright.base._storage import _settings
from meshwright.base._storage._path import location
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._inspect import verify
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.errors import DamagedError, MeshwrightError

STATE = {"x": np.arange(10_000), "y": np.float32([1, np.nan, -0.0])}


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setitem(_settings.PATIENCE, "max_retries", 1)


def to(method, fragment, fault):
    """Return what befalls all requests of a method of which the path contains something."""
    return lambda request: fault if request.method == method and fragment in request.path else None


@pytest.mark.parametrize("fault", [500, 503, "drop", "after 500", "after 503", "after drop"])
@pytest.mark.daily(1)
def test_a_fault_that_passes_changes_no_bit(s3_faults, s3_run, same_bytes, fault):
    s3_faults.fault = lambda request: fault if request.number % 3 == 0 else None
    with Checkpoints(s3_run, keep=last(1)) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, STATE)
    assert same_bytes(restore(open_source(s3_run), STATE), STATE)
    assert not verify(s3_run).damage
    assert [key.rpartition("/")[2] for key in objects(s3_run)] == [
        "data-00000-of-00001.zarr.zip",
        "manifest.json",
    ]


@pytest.mark.parametrize("fault", ["hang", pytest.param("after hang", marks=pytest.mark.nightly)])
def test_a_connection_that_stands_still_is_given_up_and_asked_again(
    s3_faults, s3_run, same_bytes, monkeypatch, fault
):
    for patience in (_settings.PATIENCE, _settings.IMPATIENCE):
        monkeypatch.setitem(patience, "stalled", 0.3)
    s3_faults.fault = lambda request: fault if request.number % 4 == 0 else None
    with Checkpoints(s3_run) as checkpoints:
        checkpoints.save(1, STATE)
    assert same_bytes(restore(open_source(s3_run), STATE), STATE)


def outage(seconds, fault):
    """Return a fault that befalls all requests from the first on, for some seconds."""
    ends = []

    def away(request):
        ends.extend([time.monotonic() + seconds] * (not ends))
        return fault if time.monotonic() < ends[0] else None

    return away


@pytest.mark.parametrize(
    ("seconds", "fault"),
    [
        pytest.param(3, 503, marks=pytest.mark.slow),
        *(
            pytest.param(seconds, fault, marks=pytest.mark.nightly)
            for seconds in (30, 120)
            for fault in (503, "drop")
        ),
    ],
)
def test_a_store_may_be_away_for_three_minutes(s3_faults, s3_run, same_bytes, caplog, seconds, fault):
    with Checkpoints(s3_run, keep=last(1)) as checkpoints:
        for step in (1, 2):
            s3_faults.fault = outage(seconds, fault)
            checkpoints.save(step, STATE)
            checkpoints.wait()
        s3_faults.fault = outage(seconds, fault)
        restored = checkpoints.resume(STATE, None, otherwise=pytest.fail)
    assert same_bytes(restored, STATE)
    assert sorted(checkpoints.scores_by_step()) == [2]
    assert not caplog.text


def test_the_time_of_all_tries_ends_before_their_number():
    patience = _settings.PATIENCE
    shortest_pauses = patience["max_retries"] * patience["first"]
    assert shortest_pauses >= patience["seconds"] == 180


@pytest.mark.parametrize("listing", ["iterdir", "below"])
def test_a_listing_that_is_cut_off_is_asked_for_again(s3_faults, s3_run, listing):
    path = location(s3_run)
    (path / "a").put(b"content")
    first = s3_faults.requests
    s3_faults.fault = lambda request: "cut" if request.number <= first + 2 else None
    assert [str(key).rpartition("/")[2] for key in getattr(path, listing)()] == ["a"]


def test_old_checkpoints_that_cannot_be_removed_are_removed_later(s3_faults, s3_run, impatient, caplog):
    with Checkpoints(s3_run, keep=last(1)) as checkpoints:
        checkpoints.save(1, STATE)
        checkpoints.wait()
        s3_faults.fault = to("POST", "?delete", 503)
        for step in (2, 3):
            checkpoints.save(step, STATE)
            checkpoints.wait()
        assert "step 2 is saved, but older checkpoints could not be removed" in caplog.text
        assert sorted(checkpoints.scores_by_step()) == [1, 2, 3]
        s3_faults.fault = lambda request: None
    assert sorted(checkpoints.scores_by_step()) == [3]  # removed when the run ends


@pytest.mark.parametrize("status", [409, 412, "after 409", "after 412"])
def test_a_commit_that_is_refused_for_no_reason_or_has_taken_effect_is_made(s3_faults, s3_run, status):
    seen = []

    def refuse_once(request):
        is_commit = request.method == "PUT" and "/manifest.json" in request.path
        seen.extend([request] * is_commit)
        return status if is_commit and len(seen) == 1 else None

    s3_faults.fault = refuse_once
    with Checkpoints(s3_run) as checkpoints:
        checkpoints.save(1, STATE)
    assert open_source(s3_run).step == 1


def test_latency_changes_no_bit(s3_faults, s3_run, same_bytes):
    s3_faults.latency_seconds = 0.02
    with Checkpoints(s3_run) as checkpoints:
        checkpoints.save(1, STATE)
    assert same_bytes(restore(open_source(s3_run), STATE), STATE)


@pytest.mark.parametrize(
    ("fragment", "fault"),
    [("/data-", 503), ("/data-", "drop"), ("/data-", 403), ("/part-", 503), ("/manifest.json", 503)],
)
@pytest.mark.daily(2)
def test_a_fault_that_stays_fails_the_save_and_nothing_is_offered(
    s3_faults, s3_run, impatient, fragment, fault
):
    with Checkpoints(s3_run) as checkpoints:
        checkpoints.save(1, STATE)
        checkpoints.wait()
        s3_faults.fault = to("PUT", fragment, fault)
        checkpoints.save(2, STATE)
        with pytest.raises(MeshwrightError, match=r"the save of step 2 failed:\n.*cannot write s3://bucket/"):
            checkpoints.wait()
        s3_faults.fault = lambda request: None
        assert checkpoints.latest() == 1
        assert not [key for key in objects(s3_run) if key.startswith("step_00000002")]
        checkpoints.save(2, STATE)
    assert open_source(s3_run).step == 2


def test_a_commit_that_took_effect_is_none_that_failed(s3_faults, s3_run, impatient):
    seen = []

    def lose_the_answer_and_refuse_to_be_asked_with_head(request):
        seen.append(request.method if "/manifest.json" in request.path else "")
        return {"PUT": "after 503", "HEAD": 503 if "PUT" in seen else None}.get(seen[-1])

    s3_faults.fault = lose_the_answer_and_refuse_to_be_asked_with_head
    with Checkpoints(s3_run) as checkpoints:
        checkpoints.save(1, STATE)
    s3_faults.fault = lambda request: None
    assert open_source(s3_run).step == 1


def test_that_a_part_file_stays_is_no_failed_save(s3_faults, s3_run, impatient):
    s3_faults.fault = to("DELETE", "/part-", 503)
    with Checkpoints(s3_run) as checkpoints:
        checkpoints.save(1, STATE)
    assert not verify(s3_run).damage


def test_a_store_that_does_not_answer_is_not_damaged(s3_faults, s3_run, impatient):
    with Checkpoints(s3_run) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, STATE)
        checkpoints.wait()
        s3_faults.fault = to("GET", "/data-", 503)
        with pytest.raises(MeshwrightError, match="cannot read s3://bucket/") as error:
            checkpoints.resume(STATE, None, otherwise=pytest.fail)
        assert not isinstance(error.value, DamagedError)
        s3_faults.fault = lambda request: None
        checkpoints.resume(STATE, None, otherwise=pytest.fail)
    assert checkpoints.resumed == 2
