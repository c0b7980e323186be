import logging
import threading

import pytest

from meshwright.observe._writers import behind


def test_the_loop_does_not_wait_and_reports_are_written_in_order():
    seen, may_write = [], threading.Event()

    def slow(step, values):
        assert may_write.wait(60)
        seen.append((step, values))

    with behind(slow) as write:
        for step in range(50):
            write(step, {"loss": step})
        assert seen == []
        may_write.set()
    assert seen == [(step, {"loss": step}) for step in range(50)]


def test_a_report_is_as_it_was_when_it_was_given():
    seen, may_write, values = [], threading.Event(), {"loss": 1}
    with behind(lambda step, values: (may_write.wait(60), seen.append(values))) as write:
        write(1, values)
        values["loss"] = 2
        may_write.set()
    assert seen == [{"loss": 1}]


def test_what_waits_is_written_when_an_exception_leaves():
    seen, may_write = [], threading.Event()

    def interrupted():
        with behind(lambda step, values: (may_write.wait(60), seen.append(step))) as write:
            write(1, {})
            write(2, {})
            may_write.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [1, 2]


def failing(seen):
    def write(step, values):
        seen.append(step)
        if step == 2:
            raise OSError("the server is gone")

    return write


def test_a_failure_is_raised_on_leaving_and_nothing_is_written_after_it():
    def run(seen):
        with behind(failing(seen)) as write:
            write(1, {})
            write(2, {})

    seen = []
    with pytest.raises(OSError, match="the server is gone"):
        run(seen)
    assert seen == [1, 2]


def test_a_failure_is_raised_by_a_report_that_follows():
    def run(seen):
        with behind(failing(seen)) as write:
            for step in range(10_000):
                write(step, {})
        pytest.fail("no report raised")

    seen = []
    with pytest.raises(OSError, match="the server is gone"):
        run(seen)
    assert seen == [0, 1, 2]


def test_a_failure_does_not_hide_the_exception_that_ends_the_run(caplog):
    def run():
        with behind(failing([])) as write:
            write(2, {})
            raise KeyboardInterrupt

    with caplog.at_level(logging.ERROR, "meshwright"), pytest.raises(KeyboardInterrupt):
        run()
    assert "the server is gone" in caplog.text
