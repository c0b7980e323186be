"""Profiles that are put at an address when a window ends."""

import pytest

import meshwright as mw
from base.storage.stores import objects
from meshwright.errors import UsageError
from observe.profile.test_trace import profiler_free_afterwards, run


def put(at):
    """The windows at the address whose files are all there."""
    files = objects(f"{at}/plugins/profile")
    ends = [".trace.json.gz", ".xplane.pb"]
    windows = sorted({file.split("/")[0] for file in files})
    return [
        window
        for window in windows
        if all(any(f.startswith(f"{window}/") and f.endswith(end) for f in files) for end in ends)
    ]


@pytest.mark.slow
def test_each_window_is_put_at_the_address_when_it_ends(at, tmp_path):
    seen = {}

    def look(step):
        seen[step] = put(at)

    with profiler_free_afterwards(), mw.observe.tracer(at, (1, 3), num_steps=1) as trace:
        run(trace, steps=4, before=look)
    assert (seen[1], seen[2], seen[4]) == ([], ["step_1"], ["step_1", "step_3"])
    assert not list((tmp_path / "temporary").iterdir())  # nor anything left here


def test_a_window_that_an_error_ends_is_put_there_too(at, tmp_path):
    def fail(step):
        if step == 2:
            raise OverflowError

    with (
        profiler_free_afterwards(),
        pytest.raises(OverflowError),
        mw.observe.tracer(at, (1,)) as trace,
    ):
        run(trace, steps=4, before=fail)
    assert put(at) == ["step_1"]
    assert not list((tmp_path / "temporary").iterdir())


def test_a_place_that_cannot_be_written_to_costs_the_profile_and_not_the_run(at, failing, tmp_path, caplog):
    failing.append("no such bucket")
    with profiler_free_afterwards(), mw.observe.tracer(at, (1,), num_steps=1) as trace:
        assert int(run(trace, steps=2).step) == 2
    assert "from 1 on is lost: cannot write memory://" in caplog.text
    assert not list((tmp_path / "temporary").iterdir())


def test_an_address_of_no_known_kind_is_refused_at_once():
    with (
        pytest.raises(UsageError, match="nowhere://x cannot be opened: Protocol not known"),
        mw.observe.tracer("nowhere://x", (1,)),
    ):
        pass
