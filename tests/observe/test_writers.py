"""The laws of every writer that ships."""

import json
import math
import sys
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.errors import UsageError
from meshwright.observe._console import Console
from meshwright.observe._jsonl import jsonl, read_jsonl
from meshwright.observe._kinds import Image
from meshwright.observe._metrics import Histogram
from meshwright.observe._tensorboard import tensorboard
from meshwright.observe._trackers import is_writer, open_trackers, wandb
from meshwright.observe._values import merge
from meshwright.observe._writers import behind, tee

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
    return [
        (event.step, {v.tag: v.simple_value for v in event.summary.value if v.HasField("simple_value")})
        for event in events
    ]


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


MIXED = {
    "loss": np.float16(0.5),
    "hits": jnp.int32(3),
    "done": True,
    **merge([{"activations": Histogram.of(np.array([-1.1, 2, 2.2, np.nan], np.float32))}]),
    "sample": "once upon a time",
    "picture": Image.of(np.zeros((2, 3))),
}


def test_numbers_of_any_dtype_are_written_beside_histograms_texts_and_images(writer, tmp_path, read_events):
    open_writer, read = writer
    with open_writer(tmp_path) as write:
        write(7, MIXED)
    [(step, values)] = read(tmp_path, read_events=read_events)
    assert (step, values["loss"], values["hits"], values["done"]) == (7, 0.5, 3, 1)


def test_what_a_report_cannot_hold_is_named_by_every_writer(writer, tmp_path):
    open_writer, _ = writer
    with open_writer(tmp_path) as write, pytest.raises(UsageError, match=r"'odd' has the shape \(3,\)"):
        write(7, {"loss": 0.5, "odd": np.zeros(3)})


def test_a_line_holds_histograms_and_texts_as_objects(tmp_path):
    jsonl(tmp_path / "metrics.jsonl")(7, MIXED)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["sample"], "picture" in line) == ({"text": "once upon a time"}, False)
    found = line["activations"]
    assert (found["edges"][0], found["edges"][-1]) == (-1.25, 2.5)
    assert (found["counts"][0], found["counts"][-1], len(found["counts"])) == (1, 2, len(found["edges"]) - 1)
    assert (found["min"], found["num_not_finite"], found["sum"]) == (pytest.approx(-1.1), 1, "nan")


def test_tensorboard_has_histograms_texts_and_images_of_its_own(tmp_path, read_events):
    with tensorboard(tmp_path) as write:
        write(7, MIXED)
    values = {value.tag: value for value in read_events(tmp_path)[-1].summary.value}
    histogram, image = values["activations"].histo, values["picture"].image
    assert (histogram.num, histogram.min, histogram.max) == (3, pytest.approx(-1.1), pytest.approx(2.2))
    assert (histogram.bucket_limit[-1], sum(histogram.bucket)) == (2.5, 3)
    assert (image.height, image.width, image.colorspace) == (2, 3, 3)
    assert image.encoded_image_string == MIXED["picture"].png()
    assert list(values["sample"].tensor.string_val) == [b"once upon a time"]


def test_each_writer_has_a_dictionary_of_its_own():
    seen = []
    tee(lambda step, values: values.clear(), lambda step, values: seen.append(values))(1, {"loss": 0.5})
    assert seen == [{"loss": 0.5}]


def test_a_tracker_is_a_writer_or_what_opens_one():
    heard = []

    @contextmanager
    def opener(name):
        yield lambda step, values: heard.append((name, step))
        heard.append("closed")

    with ExitStack() as opened:
        plain = lambda step, values: heard.append(("plain", step))
        write = open_trackers(opened, partial(opener, "opened"), plain, warn=heard.append)
        write(7, {})
    assert heard == [("opened", 7), ("plain", 7), "closed"]


@contextmanager
def failing(at, heard):
    """A tracker that fails when it is opened, at a report, or when it is closed."""

    def write(step, values):
        heard.append(step)
        if at == "report":
            raise OSError("the server is gone")

    if at == "open":
        raise OSError("the server is gone")
    yield write
    if at != "open":
        raise OSError("the server is gone")


@pytest.mark.parametrize(
    ("at", "when", "steps"),
    [
        ("open", "when it was opened", []),
        ("report", "at the report of step 1", [1]),
        ("close", "when it was closed", [1, 2]),
    ],
)
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_tracker_that_fails_is_told_of_once_and_put_aside(at, when, steps, is_behind):
    told, heard, others = [], [], []

    @contextmanager
    def opened_behind():
        with failing(at, heard) as write, behind(write) as hand_over:
            yield hand_over

    tracker = opened_behind if is_behind else partial(failing, at, heard)
    with ExitStack() as opened:
        write = open_trackers(
            opened, tracker, lambda step, values: others.append((step, values)), warn=told.append
        )
        write(1, {"loss": 0.5})
        write(2, {"loss": 0.25})
    assert others == [(1, {"loss": 0.5}), (2, {"loss": 0.25})]
    assert heard == steps
    [said] = told
    if not is_behind:
        assert f"the tracker failing failed {when}; the run continues" in said
    assert "OSError: the server is gone" in said


def test_a_tracker_neither_stops_nor_replaces_what_ends_the_run():
    @contextmanager
    def swallowing():
        with suppress(KeyboardInterrupt):
            yield lambda step, values: None

    @contextmanager
    def failing_at_last():
        try:
            yield lambda step, values: None
        finally:
            raise OSError("the server is gone")

    def interrupted():
        with ExitStack() as opened:
            open_trackers(opened, swallowing, failing_at_last, warn=told.append)
            raise KeyboardInterrupt

    told = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(told) == 1


def test_a_tracker_that_is_not_installed_is_the_users_mistake(monkeypatch, tmp_path):
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UsageError, match="the package wandb, which is not installed"), ExitStack() as opened:
        open_trackers(opened, partial(wandb, project="x"), warn=print)


@pytest.mark.parametrize("tracker", [lambda values: None, "wandb"])
def test_what_is_no_tracker_is_refused(tracker):
    with pytest.raises(UsageError, match="tracker"):
        is_writer(tracker)


def test_a_tee_of_nothing_writes_nothing():
    assert tee()(1, {"loss": 0.5}) is None
