"""A run goes back to an earlier checkpoint, and what was later is kept beside."""

import signal

import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment, losses, measure
from meshwright.cli import main
from meshwright.errors import Interrupted, UsageError
from meshwright.report._records import times_back
from meshwright.report._run import read_run


def described(tmp_path, **more):
    saved = {
        "save": mw.Save(when=2, keep=mw.checkpoints.everything),
        "logging": mw.Logging(every=1),
        "max_steps": 8,
    }
    return experiment(tmp_path, **saved | more)


def steps(run):
    return sorted(int(path.name.removeprefix("step_")) for path in run.glob("checkpoints/step_????????"))


def aside(run):
    return sorted(path.name.partition(".later-")[0] for path in run.glob("checkpoints/*.later-*"))


def test_it_goes_on_from_that_step_and_its_history_reads_as_one_line(tmp_path):
    mw.run(described(tmp_path / "run"))
    mw.run(described(tmp_path / "run", max_steps=6), from_step=4)
    mw.run(described(tmp_path / "undisturbed", max_steps=6))
    assert losses(tmp_path / "run") == losses(tmp_path / "undisturbed")
    assert steps(tmp_path / "run") == [2, 4, 6]


def test_later_checkpoints_and_reports_are_kept_beside(tmp_path):
    mw.run(described(tmp_path))
    before = losses(tmp_path)
    mw.run(described(tmp_path, max_steps=5), from_step=4)
    assert aside(tmp_path) == ["step_00000006", "step_00000008"]
    (kept,) = (tmp_path / "attempts").glob("metrics-*.jsonl")
    assert [(r["step"], r["loss"]) for r in mw.observe.read_jsonl(kept) if "loss" in r] == before
    (later, *_) = (tmp_path / "checkpoints").glob("step_00000008.later-*")
    assert not mw.checkpoints.verify(later.rename(tmp_path / "step_00000008")).damage


@pytest.mark.slow
def test_it_is_told_on_the_screen_and_among_the_attempts_of_the_page(tmp_path, capsys):
    mw.run(described(tmp_path))
    mw.run(described(tmp_path), from_step=4)
    assert "going back to step 4: later checkpoints are set aside, of step 6, 8" in capsys.readouterr().err
    assert "went back from step 8" in (tmp_path / "report.html").read_text()
    assert [(back.to, back.newest) for back in times_back(tmp_path)] == [(4, 8)]


def test_a_step_without_a_checkpoint_is_refused_with_those_that_there_are(tmp_path):
    mw.run(described(tmp_path))
    with pytest.raises(UsageError, match=r"from_step=5: .*\n  There are checkpoints of: 2, 4, 6, 8\."):
        mw.run(described(tmp_path), from_step=5)
    assert steps(tmp_path) == [2, 4, 6, 8]


def test_what_is_wrong_with_the_settings_is_found_before_anything_is_set_aside(tmp_path):
    mw.run(described(tmp_path))
    with pytest.raises(UsageError):
        mw.run(
            described(tmp_path, evaluations={"e": mw.Evaluation(lambda params, batch: {"e": 1.0}, EXAMPLES)}),
            from_step=4,
        )
    assert steps(tmp_path) == [2, 4, 6, 8]


STOPS = {"at": 6}


def stop(now, values):
    if now == STOPS["at"] and "loss" in values:
        signal.raise_signal(signal.SIGTERM)


def test_the_same_command_given_again_after_it_was_cut_off_goes_on(tmp_path, monkeypatch):
    mw.run(described(tmp_path))
    with pytest.raises(Interrupted):
        mw.run(described(tmp_path, logging=mw.Logging(every=5, trackers=(stop,))), from_step=2)
    monkeypatch.setitem(STOPS, "at", 99)
    assert mw.run(described(tmp_path, logging=mw.Logging(every=5, trackers=(stop,))), from_step=2).step == 8
    assert [back.to for back in times_back(tmp_path)] == [2]


@pytest.mark.slow
def test_with_other_settings_it_goes_back_once_more(tmp_path):
    mw.run(described(tmp_path))
    with pytest.raises(Interrupted):
        mw.run(described(tmp_path, logging=mw.Logging(every=5, trackers=(stop,))), from_step=2)
    mw.run(described(tmp_path, seed=0, logging=mw.Logging(every=2)), from_step=2)
    assert [(back.to, back.newest) for back in times_back(tmp_path)] == [(2, 8), (2, 6)]


def test_the_command_goes_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    assert main(["train", "mine:experiment"]) == 0
    assert main(["resume", "runs/tiny", "--from-step", "3"]) == 2
    assert "There are checkpoints of: 2, 4, 6" in capsys.readouterr().err
    assert main(["resume", "runs/tiny", "--from-step", "2", "max_steps=4"]) == 0
    assert steps(tmp_path / "runs/tiny") == [2, 4]


MODULE = """
import dataclasses
import meshwright as mw
from engine.experiment.runs import experiment as tiny

def experiment(workdir: str = "runs/tiny", max_steps: int = 6) -> mw.Experiment:
    return tiny(workdir, max_steps=max_steps, save=mw.Save(when=2, keep=9))
"""


def test_scores_of_what_was_later_count_no_more(tmp_path):
    evaluations = {"all": mw.Evaluation(measure, EXAMPLES, when=2)}
    seen = []
    mw.run(described(tmp_path, evaluations=evaluations, stop=mw.Stop(early=lambda scores: False)))
    mw.run(
        described(
            tmp_path,
            evaluations=evaluations,
            stop=mw.Stop(early=lambda scores: seen.append(sorted(scores)) or False),
        ),
        from_step=4,
    )
    assert seen[-2:] == [[2, 4, 6], [2, 4, 6, 8]]
    assert len(read_run(tmp_path).scores["all/loss"].steps) == 4


@pytest.mark.slow
def test_at_an_address_it_goes_back_too_and_only_manifests_are_renamed(s3_run):
    mw.run(described(s3_run))
    mw.run(described(s3_run, max_steps=5), from_step=4)
    place = mw.Checkpoints(f"{s3_run}/checkpoints").directory
    assert mw.checkpoints._internal.complete_steps(place) == [2, 4, 5]
    assert [name.partition(".later-")[0] for name in mw.checkpoints._internal.set_aside_names(place)] == [
        "step_00000006/manifest.json",
        "step_00000008/manifest.json",
    ]
    mw.run(described(s3_run))
    assert mw.checkpoints._internal.complete_steps(place) == [2, 4, 5, 6, 8]
