"""Retention as a table of laws: what is saved and done, and which steps are there after each save.

The scenarios, their steps and their scores are those of T5X (`Checkpointer`, `SaveBestCheckpointer`) and of
axlearn, told in our terms. Those with scores hold wherever the scores are, and whether or not a new run
makes each save.
"""

import math

import pytest

from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._inspect import pin, unpin
from meshwright.checkpoints._retention import always, best, everything, keep_any, last, multiples, spaced
from meshwright.observe._tensorboard import tensorboard

METRIC = "train/accuracy"


def save(step, left, accuracy=None):
    """Save `step`, which scores `accuracy`; then the steps in `left` are there."""
    return "save", step, left, accuracy


def highest(num_checkpoints, *, force=None, without_metric="drop"):
    return _best(num_checkpoints, "max", force, without_metric)


def lowest(num_checkpoints):
    return _best(num_checkpoints, "min", None, "drop")


def _best(num_checkpoints, mode, force, without_metric):
    def make(events):
        keep = best(METRIC, mode, num_checkpoints, without_metric=without_metric, events=events)
        return always(multiples(force), then=keep) if force else keep

    return make


PLAIN = {
    "the newest two, then one, then three": [
        last(2),
        save(42, [42]),
        save(43, [42, 43]),
        save(44, [43, 44]),
        last(1),
        save(45, [45]),
        last(3),
        save(46, [45, 46]),
    ],
    "a pinned one stays": [
        last(1),
        save(42, [42]),
        ("pin", 42),
        save(43, [42, 43]),
        save(44, [42, 44]),
    ],
    "a pinned one counts": [
        last(2),
        save(42, [42]),
        save(43, [42, 43]),
        ("pin", 43),
        save(44, [43, 44]),
        save(45, [43, 44, 45]),
        ("unpin", 43),
        save(46, [45, 46]),
    ],
    "everything": [everything, save(1, [1]), save(2, [1, 2]), save(3, [1, 2, 3])],
    "the newest three and one every two steps": [
        keep_any(last(3), spaced(2)),
        *(save(step, None) for step in range(9)),
        save(9, [0, 2, 4, 6, 7, 8, 9]),
    ],
    "spacing is counted from the one kept before, divisibility from 0": [
        keep_any(last(1), spaced(10)),
        save(5, [5]),
        save(10, [5, 10]),
        save(15, [5, 15]),
        save(20, [5, 15, 20]),
        multiples(10),
        save(25, [20, 25]),
    ],
    "a step that was left out is saved late": [last(1), save(7, [7]), save(5, [5, 7]), save(8, [8])],
}

SCORED = {
    "without a score the oldest goes": [
        highest(2),
        save(41, [41]),
        save(42, [41, 42]),
        save(43, [41, 42, 43]),
        save(44, [42, 43, 44]),
    ],
    "the highest, then the lowest": [
        highest(2),
        save(41, [41]),
        save(42, [41, 42], 0.9),
        save(43, [41, 42, 43], 0.8),
        save(44, [42, 43, 44], 0.7),
        save(45, [42, 43, 45], 0.95),
        lowest(2),
        save(46, [42, 43, 46], 0.99),
        save(47, [42, 43, 47]),
    ],
    "a pinned one stays besides the best, and goes when unpinned": [
        highest(2),
        save(42, [42], 0.9),
        save(43, [42, 43], 0.7),
        save(44, [42, 43, 44], 0.8),
        ("pin", 43),
        save(45, [42, 43, 44, 45]),
        save(46, [42, 43, 44, 46], 0.6),
        ("unpin", 43),
        save(47, [42, 44, 47]),
    ],
    "those without a score stay, until they are to go": [
        highest(1, without_metric="keep"),
        save(41, [41]),
        save(42, [41, 42]),
        save(43, [41, 42, 43], 0.6),
        save(44, [41, 42, 43, 44], 0.5),
        save(45, [41, 42, 43, 45], 0.4),
        highest(1),
        save(46, [43, 46]),
    ],
    "pinned ones with and without a score": [
        highest(1, without_metric="keep"),
        save(41, [41]),
        save(42, [41, 42]),
        save(43, [41, 42, 43], 0.5),
        ("pin", 41),
        ("pin", 43),
        save(44, [41, 42, 43, 44], 0.4),
        save(45, [41, 42, 43, 45], 0.8),
    ],
    "multiples of three stay and are not counted": [
        highest(2, force=3),
        *(save(step, None, step / 100) for step in range(8)),
        save(8, [0, 3, 5, 6, 7, 8], 0.08),
        save(9, [0, 3, 6, 7, 8, 9], 0.09),
    ],
    "the best two of a hundred": [
        everything,
        *(save(step, None, step * (0.01 if step in (42, 53) else 0.001)) for step in range(100)),
        highest(2),
        save(101, [42, 53, 101]),
    ],
    "of equal ones the oldest goes": [
        highest(2),
        save(1, [1], 0.5),
        save(2, [1, 2], 0.5),
        save(3, [1, 2, 3], 0.5),
        save(4, [2, 3, 4], 0.5),
    ],
    "NaN is the worst": [
        highest(1),
        save(1, [1], 0.1),
        save(2, [1, 2], math.nan),
        save(3, [1, 3], -math.inf),
        save(4, [1, 4], math.nan),
    ],
    "NaN is the worst for the lowest, too": [
        lowest(1),
        save(1, [1], math.nan),
        save(2, [1, 2], 0.1),
        save(3, [2, 3], math.inf),
    ],
}


def do(act, checkpoints, events=None):
    """Do one thing; `events` is the directory that the scores go to, if they are not saved along."""
    match act:
        case "save", step, left, accuracy:
            scores = {} if accuracy is None else {METRIC: accuracy}
            if scores and events:
                write_event(events, step, accuracy)
            checkpoints.save(step, {"x": step}, {"scores": {} if events else scores})
            checkpoints.wait()
            assert left is None or steps(checkpoints.directory) == left
        case "pin", step:
            pin(checkpoints.directory / f"step_{step:08d}", "a good one")
        case "unpin", step:
            unpin(checkpoints.directory / f"step_{step:08d}")
        case keep:
            checkpoints.keep = keep


def write_event(directory, step, accuracy):
    with tensorboard(directory / "train") as write:
        write(step, {"loss": 1.0, "accuracy": accuracy})


def steps(directory):
    return sorted(int(path.name.removeprefix("step_")) for path in directory.glob("step_*"))


def with_policies(acts, events=None):
    """Return `acts` with those that wait to be told where the scores are made into policies."""
    return [act(events) if getattr(act, "__name__", "") == "make" else act for act in acts]


@pytest.mark.parametrize("name", PLAIN)
def test_by_step(name, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for act in PLAIN[name]:
            do(act, checkpoints)


@pytest.mark.parametrize("name", SCORED)
def test_by_scores_in_the_checkpoints(name, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for act in with_policies(SCORED[name]):
            do(act, checkpoints)


@pytest.mark.parametrize("name", SCORED)
def test_by_scores_in_event_files(name, tmp_path):
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        for act in with_policies(SCORED[name], events=tmp_path):
            do(act, checkpoints, events=tmp_path)


@pytest.mark.parametrize("name", SCORED)
def test_by_scores_that_are_remembered_though_each_save_is_by_a_new_run(name, tmp_path):
    keep = everything
    for act in with_policies(SCORED[name]):
        with Checkpoints(tmp_path, keep=keep) as checkpoints:
            do(act, checkpoints)
        keep = checkpoints.keep


def test_scores_that_come_late_to_event_files_count(tmp_path):
    with Checkpoints(tmp_path / "checkpoints", keep=best(METRIC, "max", events=tmp_path)) as checkpoints:
        for act in (save(1, [1]), save(2, [1, 2]), save(3, [1, 2, 3])):
            do(act, checkpoints)
        for step, accuracy in {1: 0.5, 2: 0.9, 3: 0.7}.items():
            write_event(tmp_path, step, accuracy)
        do(save(4, [2, 4]), checkpoints)
