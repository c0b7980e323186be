"""Policies as functions, and what is left on disk when they are asked after each save."""

import itertools
import math
import re
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._retention import always, best, everything, keep_any, last, multiples, spaced
from meshwright.errors import MeshwrightError, UsageError


def saved_steps(directory):
    return sorted(int(path.name.removeprefix("step_")) for path in directory.glob("step_*"))


def save_all(checkpoints, scores):
    for step, loss in scores.items():
        checkpoints.save(step, {"x": step}, {"scores": {"loss": loss}})


def scored(values):
    return {step: {} if value is None else {"loss": value} for step, value in values.items()}


def history_of(values, max_size=20):
    return st.dictionaries(st.integers(0, 60), values, min_size=1, max_size=max_size).map(
        lambda scores: dict(sorted(scores.items()))
    )


LOSSES = st.none() | st.just(math.nan) | st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, math.inf])
HISTORIES = history_of(LOSSES).map(scored)
NUMBERS = st.integers(1, 6)
MODES, WITHOUT = st.sampled_from(["min", "max"]), st.sampled_from(["keep", "drop"])
SIMPLE = st.one_of(
    st.just(everything),
    st.builds(last, NUMBERS),
    st.builds(multiples, NUMBERS),
    st.builds(spaced, NUMBERS),
    st.builds(best, st.just("loss"), MODES, NUMBERS, without_metric=WITHOUT),
)
COMPOSED = st.builds(keep_any, SIMPLE, SIMPLE) | st.builds(always, SIMPLE, then=SIMPLE)
POLICIES = SIMPLE | COMPOSED


@given(POLICIES, HISTORIES)
def test_a_policy_names_some_of_what_there_is_and_is_a_pure_function(keep, scores):
    before = repr(scores)
    kept = keep(scores)
    assert kept <= scores.keys()
    assert (keep(scores), repr(scores)) == (kept, before)
    assert keep(dict(reversed(scores.items()))) == kept


@given(POLICIES)
def test_of_nothing_nothing_is_kept(keep):
    assert keep({}) == set()


@given(SIMPLE, HISTORIES)
def test_asked_after_each_save_a_policy_leaves_what_it_keeps_of_the_whole_history(keep, scores):
    left = {}
    for step in scores:
        left[step] = scores[step]
        left = {step: left[step] for step in keep(left) | {max(left)}}
    assert left.keys() == keep(scores) | {max(scores)}


@given(history_of(st.none()), NUMBERS)
def test_last_keeps_the_newest(scores, num_checkpoints):
    assert last(num_checkpoints)(scores) == set(sorted(scores)[-num_checkpoints:])


@given(history_of(st.none()), NUMBERS)
def test_multiples_keeps_the_steps_that_are_divisible(scores, num_steps):
    assert multiples(num_steps)(scores) == {step for step in scores if step % num_steps == 0}


@given(history_of(st.none()), NUMBERS)
def test_spaced_leaves_no_two_closer_and_no_one_that_was_far_enough(scores, num_steps):
    kept = sorted(spaced(num_steps)(scores))
    assert all(later - earlier >= num_steps for earlier, later in itertools.pairwise(kept))
    assert all(any(0 <= step - other < num_steps for other in kept) for step in scores)


@given(HISTORIES, MODES, NUMBERS, WITHOUT)
def test_best_keeps_the_newest_and_as_many_as_it_was_asked_for(scores, mode, num_checkpoints, without_metric):
    kept = best("loss", mode, num_checkpoints, without_metric=without_metric)(scores)
    assert max(scores) in kept
    assert len(kept) >= min(num_checkpoints + 1, len(scores))
    if without_metric == "drop":
        assert len(kept) == min(num_checkpoints + 1, len(scores))
    else:
        assert {step for step, saved in scores.items() if not saved} <= kept


@given(history_of(st.floats(-1, 1)).map(scored), MODES, NUMBERS)
def test_best_keeps_none_that_is_worse_than_one_it_drops(scores, mode, num_checkpoints):
    kept, sign = best("loss", mode, num_checkpoints)(scores), {"min": -1, "max": 1}[mode]
    worth = {step: (sign * saved["loss"], step) for step, saved in scores.items()}
    dropped = [worth[step] for step in scores.keys() - kept]
    assert all(worth[step] > worst for step in kept - {max(scores)} for worst in dropped)


@pytest.mark.parametrize(
    ("losses", "kept"),
    [
        ({1: 0.5, 2: 0.5, 3: 0.5, 4: 0.9}, {2, 3}),
        ({1: math.nan, 2: 0.5, 3: 0.7, 4: 0.9}, {2, 3}),
        ({1: math.nan, 2: math.inf, 3: math.nan, 4: 0.9}, {2, 3}),
        ({1: None, 2: math.nan, 3: None, 4: 0.1}, {1, 3}),
        ({1: 0.5, 2: None, 3: 0.6, 4: None}, {1, 3}),
        ({1: 0.5, 2: math.inf, 3: -math.inf, 4: None}, {1, 3}),
    ],
    ids=["ties drop the oldest", "NaN", "two NaNs", "NaN is worse than no score", "no score", "infinities"],
)
def test_which_two_are_best(losses, kept):
    assert best("loss", "min", 2, without_metric="drop")(scored(losses)) == kept | {4}


@given(SIMPLE, SIMPLE, HISTORIES)
def test_any_of_keeps_what_one_or_the_other_keeps(one, other, scores):
    assert keep_any(one, other)(scores) == one(scores) | other(scores)


def test_always_does_not_count_what_it_keeps():
    scores = scored(dict.fromkeys(range(1, 11)))
    assert keep_any(multiples(5), last(3))(scores) == {5, 8, 9, 10}
    assert always(multiples(5), then=last(3))(scores) == {5, 8, 9, 10}
    assert keep_any(multiples(3), last(3))(scores) == {3, 6, 8, 9, 10}
    assert always(multiples(3), then=last(3))(scores) == {3, 6, 7, 8, 9, 10}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: last(0), r"last\(0\)"),
        (lambda: multiples(0), r"multiples.* at least 1"),
        (lambda: spaced(-5), r"spaced.* at least 1"),
        (lambda: best("loss", "min", 0), r"best.* at least 1"),
        (lambda: best("loss", "lowest"), "expected mode .* got mode='lowest'"),
        (lambda: best("loss", "min", without_metric="sort"), "without_metric='sort'"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_policy_is_made(make, said):
    with pytest.raises(UsageError, match=said):
        make()


def test_two_are_kept_unless_said_otherwise(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, dict.fromkeys([9, 10, 11, 100], 0.0))
    assert saved_steps(tmp_path) == [11, 100]


def test_the_best_of_earlier_runs_is_remembered(tmp_path):
    for losses in ({1: 0.5, 2: 0.1}, {3: 0.4, 4: 0.3}):
        with Checkpoints(tmp_path, keep=best("loss", "min")) as checkpoints:
            save_all(checkpoints, losses)
    assert saved_steps(tmp_path) == [2, 4]


def test_the_newest_stays_whatever_the_policy_says(tmp_path):
    with Checkpoints(tmp_path, keep=lambda scores: set()) as checkpoints:
        save_all(checkpoints, {1: 0.0, 2: 0.0})
    assert saved_steps(tmp_path) == [2]


def test_what_cannot_be_read_is_not_removed(tmp_path):
    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        save_all(checkpoints, {1: 0.0})
    (tmp_path / "step_00000001" / "manifest.json").write_text("{")
    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        save_all(checkpoints, {2: 0.0, 3: 0.0})
    assert saved_steps(tmp_path) == [1, 3]


def test_a_removal_that_is_cut_short_leaves_no_half_a_checkpoint(tmp_path, monkeypatch, caplog):
    def cut_short(path, **_):
        if path.name.startswith("step_00000001"):
            (path / "data-00000-of-00001.zarr.zip").unlink()
            raise OSError("killed here")

    monkeypatch.setattr(shutil, "rmtree", cut_short)
    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        save_all(checkpoints, {1: 0.0, 2: 0.0})
        checkpoints.wait()
        assert re.search(r"step 2 is saved, but older .* killed here", caplog.text)
        assert not (tmp_path / "step_00000001").exists()
        monkeypatch.undo()
    assert [path.name for path in tmp_path.glob("step_*")] == ["step_00000002"]  # the end removes the rest


def test_a_policy_that_fails_costs_no_checkpoint(tmp_path):
    with Checkpoints(tmp_path, keep=lambda scores: scores["no such step"]) as checkpoints:
        save_all(checkpoints, {1: 0.0})
        with pytest.raises(
            MeshwrightError, match="step 1 is saved, but older checkpoints could not be removed"
        ):
            checkpoints.wait()
        assert checkpoints.latest() == 1


@pytest.mark.parametrize(
    ("saved", "kept"),
    [(range(10), [0, 2, 4, 6, 7, 8, 9]), ([0, 3, 6, 8, 9], [0, 3, 6, 8, 9]), ([0, 1, 9], [0, 1, 9])],
)
def test_the_newest_three_and_every_second_step_before_them_are_left(tmp_path, saved, kept):
    uncommitted = [tmp_path / f"step_{step:08d}.tmp-0123abcd" for step in (5, 11)]
    with Checkpoints(tmp_path, keep=keep_any(last(3), spaced(2))) as checkpoints:
        for path in uncommitted:  # what others are writing is neither counted nor removed
            path.mkdir()
        save_all(checkpoints, dict.fromkeys(saved, 0.0))
    assert all(path.exists() for path in uncommitted)
    for path in uncommitted:
        path.rmdir()
    assert saved_steps(tmp_path) == kept


def test_a_short_run_keeps_no_more_than_it_was_told(tmp_path):
    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        save_all(checkpoints, {1: 0.0, 2: 0.0})
    assert saved_steps(tmp_path) == [2]


def test_multiples_of_a_score_keep_no_checkpoint_without_the_score():
    epochs = {3: {"epoch": 1.0}, 5: {}, 6: {"epoch": 2.0}, 12: {"epoch": 4.0}}
    assert multiples(2, of="epoch")(epochs) == {6, 12}
