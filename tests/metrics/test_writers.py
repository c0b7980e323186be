"""The laws of every writer that ships."""

import math
from contextlib import contextmanager

import pytest

from meshwright.metrics import Console, jsonl, read_jsonl, tee, tensorboard

# Values that float32 and four digits hold exactly, so that one law fits all.
REPORTS = [
    (1, {"loss": 2.5, "accuracy": 0.125}),
    (2, {"loss": -3.0, "held_out/loss": 1.75}),
    (2, {"held_out/accuracy": 1.0}),
    (1000, {"loss": math.inf, "grad_norm": -math.inf, "z_loss": math.nan}),
]


@contextmanager
def open_jsonl(path, **_):
    yield jsonl(path / "metrics.jsonl")


def jsonl_reports(path, **_):
    return [(r.pop("step"), r) for r in read_jsonl(path / "metrics.jsonl") if r.pop("time")]


def tensorboard_reports(path, read_events):
    events = [event for event in read_events(path) if event.HasField("summary")]
    return [(event.step, {v.tag: v.simple_value for v in event.summary.value}) for event in events]


@contextmanager
def open_console(path, **_):
    with (path / "log").open("w") as file, Console(1000, file=file) as console:
        yield console


def console_reports(path, **_):
    for line in (path / "log").read_text().splitlines():
        _, step, *fields = line.split(" ")
        values = {
            name: float(value) for name, value in (field.split("=") for field in fields if ":" not in field)
        }
        yield int(step.removeprefix("step=").removesuffix("/1000")), values


@contextmanager
def open_tee(path):
    with open_jsonl(path) as one, tensorboard(path) as two:
        yield tee(one, two)


def tee_reports(path, read_events):
    reports = list(jsonl_reports(path))
    assert str(reports) == str(tensorboard_reports(path, read_events))
    return reports


WRITERS = {
    "jsonl": (open_jsonl, jsonl_reports),
    "tensorboard": (tensorboard, tensorboard_reports),
    "console": (open_console, console_reports),
    "tee": (open_tee, tee_reports),
}


@pytest.fixture(params=WRITERS)
def writer(request):
    return WRITERS[request.param]


def test_reports_are_read_back_as_written_and_in_order(writer, tmp_path, read_events):
    open_writer, read = writer
    with open_writer(tmp_path) as write:
        for step, values in REPORTS:
            write(step, values)
    assert str(list(read(tmp_path, read_events=read_events))) == str(REPORTS)  # str: nan is nan


def test_leaving_by_an_exception_loses_no_report(writer, tmp_path, read_events):
    open_writer, read = writer

    def interrupted():
        with open_writer(tmp_path) as write:
            write(1, {"loss": 0.5})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(read(tmp_path, read_events=read_events)) == [(1, {"loss": 0.5})]


def test_a_tee_of_nothing_writes_nothing():
    assert tee()(1, {"loss": 0.5}) is None
