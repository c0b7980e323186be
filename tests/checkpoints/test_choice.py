"""One checkpoint of many: by its step, or as the best by a score, of a run or a directory of checkpoints."""

import pytest

from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._choice import chosen_step, open_best
from meshwright.errors import CheckpointError, UsageError

SCORES = {
    10: {"test/loss": 0.5, "test/distance": 3.0, "eval/f1": 0.1},
    20: {"test/loss": 0.1, "test/distance": 2.0, "eval/f1": 0.7},
    30: {"test/loss": 0.3, "test/distance": 1.0, "eval/f1": float("nan")},
}
KEPT_BY_LOSS = "save.keep = meshwright.checkpoints.Best(metric='test/loss', mode='min', events=None)\n"
KEPT_BY_F1 = "save.keep.keeps.0 = meshwright.checkpoints.Best(metric='eval/f1', mode='max', events=None)\n"


@pytest.fixture
def run_of(tmp_path):
    """Return a function that makes a run directory, described by a text, with three checkpoints."""

    def make(described):
        with Checkpoints(tmp_path / "run/checkpoints", keep=9) as checkpoints:
            for step, scores in SCORES.items():
                checkpoints.save(step, {"x": step}, {"scores": scores})
        (tmp_path / "run/experiment.txt").write_text(described)
        return tmp_path / "run"

    return make


@pytest.mark.parametrize(
    ("described", "step"),
    [
        (KEPT_BY_LOSS, 20),
        (KEPT_BY_F1, 20),
        ("save.keep.keeps.1 = meshwright.checkpoints.Best(metric='test/distance', mode='min')\n", 30),
        ("save.keep = meshwright.checkpoints.Best(metric='test/distance', mode='max')\n", 10),
    ],
)
def test_the_best_of_a_run_is_by_the_score_that_it_keeps_its_best_by(run_of, described, step):
    run = run_of(described)
    assert open_best(run).step == step == chosen_step(str(run), "best")


def test_a_run_s_folder_of_checkpoints_stands_for_the_run(run_of):
    assert open_best(run_of(KEPT_BY_F1) / "checkpoints").step == 20


def test_checkpoints_without_a_run_are_asked_for_by_a_score(run_of, tmp_path, s3_run):
    checkpoints = run_of(KEPT_BY_LOSS).rename(tmp_path / "moved") / "checkpoints"
    checkpoints = checkpoints.rename(tmp_path / "alone")
    assert open_best(checkpoints, "test/loss").step == 20
    with pytest.raises(UsageError, match=r"is the best\?(.|\n)*eval/f1, test/distance, test/loss"):
        open_best(checkpoints)
    with Checkpoints(s3_run) as saved:
        saved.save(10, {"x": 10}, {"scores": SCORES[10]})
    assert open_best(s3_run, "test/distance", "max").step == 10


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("best:test/loss", 20),
        ("best:test/loss:max", 10),
        ("best:test/distance:min", 30),
        ("best:eval/f1", 20),
    ],
)
def test_a_score_s_own_name_says_which_values_are_better_unless_it_is_said(run_of, text, step):
    assert chosen_step(str(run_of("")), text) == step


def test_where_nothing_says_which_values_are_better_it_is_asked(run_of):
    with pytest.raises(UsageError, match="nothing tells whether lower or higher values of 'test/distance'"):
        open_best(run_of(KEPT_BY_LOSS), "test/distance")
    with pytest.raises(UsageError, match="mode='mean': expected 'min' or 'max'"):
        open_best(run_of(KEPT_BY_LOSS), "test/distance", "mean")


def test_a_score_that_is_not_there_is_told_with_the_nearest_and_those_that_were_chosen(run_of):
    said = r"Did you mean 'test/loss'\?(.|\n)*The run keeps its best .* by test/loss \(min\)"
    with pytest.raises(CheckpointError, match=said):
        open_best(run_of(KEPT_BY_LOSS), "loss")


def test_of_several_scores_to_keep_the_best_by_one_is_to_be_named(run_of):
    with pytest.raises(UsageError, match=r"by several scores, test/loss \(min\), eval/f1 \(max\)"):
        open_best(run_of(KEPT_BY_LOSS + KEPT_BY_F1))


def test_early_stopping_tells_the_mode_and_not_which_checkpoint_is_kept(run_of):
    run = run_of("stop.early = meshwright.engine.StopEarly(metric='test/distance', mode='min', patience=3)\n")
    assert open_best(run, "test/distance").step == 30
    with pytest.raises(UsageError, match=r"The run keeps none by a score\.\n  Name a score: "):
        open_best(run)


def test_a_step_is_there_or_the_nearest_is_named(run_of, tmp_path):
    run = str(run_of(""))
    assert (chosen_step(run, 10), chosen_step(run, "newest")) == (10, 30)
    with pytest.raises(
        CheckpointError, match=r"step 14 .*The nearest is of step 10\.\n  There are: 10, 20, 30"
    ):
        chosen_step(run, 14)
    for wrong in ("20", "bset", True, 2.0):
        with pytest.raises(UsageError, match="expected a step, 'newest', 'best'"):
            chosen_step(run, wrong)
    with pytest.raises(CheckpointError, match="none does not exist"):
        chosen_step(str(tmp_path / "none"), "newest")


def test_of_a_score_that_is_never_a_number_no_checkpoint_is_the_best(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": 1}, {"scores": {"test/loss": float("nan")}})
    with pytest.raises(CheckpointError, match="has a score 'test/loss' that is a number: all are NaN"):
        open_best(tmp_path, "test/loss")


def test_a_checkpoint_whose_score_cannot_be_read_is_passed_over_aloud(run_of, caplog):
    run = run_of(KEPT_BY_LOSS)
    (run / "checkpoints/step_00000020/manifest.json").write_text("{")
    assert open_best(run).step == 30
    assert "is one of the others: of step 20 the scores cannot be read" in caplog.text
