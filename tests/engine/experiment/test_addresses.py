"""Runs whose directory is at an address."""

import json
import os
import re
import signal

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import meshwright as mw
from base.storage.stores import files, put
from engine.experiment.runs import EXAMPLES, experiment, losses, measure
from meshwright.base._storage import _copies
from meshwright.base._storage._copies import local_copy
from meshwright.checkpoints._choice import checkpoints_of
from meshwright.cli import main
from meshwright.errors import DivergedError, Interrupted, MeshwrightError, UsageError


def evaluated(run, **more):
    outputs = lambda params, batch: {"y": batch["x"] @ params["w"]}
    return experiment(run, evaluations={"all": mw.Evaluation(measure, EXAMPLES, outputs=outputs)}, **more)


def described(workdir: str, steps: int = 10) -> mw.Experiment:
    return evaluated(workdir, max_steps=steps)


TARGET = "engine.experiment.test_addresses:described"


def losses_at(address):
    with local_copy(address) as run:
        return losses(run)


def named(paths):
    """The names of files, without what differs from run to run, and without what is kept elsewhere."""
    here = (re.sub(r"tfevents.*", "tfevents", path) for path in paths)
    return {path for path in here if not path.startswith(("checkpoints/", ".run.lock"))}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    mw.run(evaluated(run, profile=mw.Profile((2,))))
    return run


def test_all_that_a_run_directory_holds_is_at_the_address(memory, at, local, tmp_path):
    mw.run(evaluated(at, profile=mw.Profile((2,))))
    there = named(files(at))
    assert there == named(str(p.relative_to(local)) for p in local.rglob("*") if p.is_file())
    assert {"metrics.jsonl", "outcome.json", "logs/process-00000.log"} < there
    assert f"<h1>{at}</h1>".encode() in files(at)["report.html"]
    assert losses_at(at) == losses(local)
    assert not list((tmp_path / "temporary").iterdir())


def test_checkpoints_are_below_it_and_compiled_programs_stay_here(at, tmp_path, compiled_for_users):
    mw.run(experiment(at))
    assert checkpoints_of(at) == f"{at}/checkpoints"
    assert checkpoints_of("nowhere://x") == "nowhere://x"
    assert mw.checkpoints.open_source(f"{at}/checkpoints").step == 10
    assert list((tmp_path / "cache/meshwright/compile_cache").glob("*/*-cache"))


def test_what_a_store_that_could_not_delete_has_kept_is_removed_at_the_next_start(memory, at):
    for probe in (".probe-0123abcd", "checkpoints/.probe-0123abcd"):
        put(f"{at}/{probe}", b"written")
    mw.run(experiment(at))
    assert not [name for name in files(at) if ".probe-" in name]


def test_a_run_that_is_told_to_stop_goes_on_from_its_address_as_from_a_directory(memory, at, local):
    def stop(step, values):
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        mw.run(evaluated(at, logging=mw.Logging(every=5, trackers=(stop,))))
    assert b'"ended": "stopped"' in files(at)["outcome.json"]
    mw.run(evaluated(at))
    assert losses_at(at) == losses(local)
    assert files(at)["logs/process-00000.log"].decode().count("run memory://") == 2


def test_a_run_that_goes_on_has_no_outcome_until_it_has_another(memory, at):
    seen = []
    mw.run(experiment(at, max_steps=4))
    look = lambda step, values: seen.append((step, "outcome.json" in files(at)))
    mw.run(experiment(at, save=mw.Save(when=2), logging=mw.Logging(every=5, trackers=(look,))))
    assert dict(seen)[10] is False  # the save of step 8 has waited for that of step 6
    assert "outcome.json" in files(at)


def test_reports_are_there_before_the_checkpoint_that_follows_them_is(memory, at):
    """Of a process that is killed right after a commit nothing else comes to the address."""
    seen = []

    def look(step, values):
        found = mw.checkpoints.contents(f"{at}/checkpoints").checkpoints
        there = files(at).get("metrics.jsonl", b"")
        seen.extend((each.step, b'"step": %d, ' % each.step in there) for each in found)

    mw.run(experiment(at, save=mw.Save(when=2), logging=mw.Logging(every=1, trackers=(look,))))
    assert seen
    assert all(is_there for _, is_there in seen)


def test_a_store_that_fails_in_the_middle_is_told_of_and_training_goes_on(memory, at, failing, capsys):
    def fail(step, values):
        failing[:] = ["out of order"] if 4 <= step < 10 else []

    outcome = mw.run(experiment(at, logging=mw.Logging(every=5, trackers=(fail,))))
    assert outcome.step == 10
    assert f"cannot write {at}/" in capsys.readouterr().err
    assert [step for step, _ in losses_at(at)] == [4, 5, 8, 10]
    assert b"WARNING memory://" in files(at)["logs/process-00000.log"]


def test_a_store_that_fails_to_the_end_is_an_error_and_nothing_is_lost(at, failing, tmp_path, monkeypatch):
    monkeypatch.setattr(_copies, "RETRY_SECONDS", (0,))
    with pytest.raises(MeshwrightError, match="out of order\n  The files that are missing there are in "):
        mw.run(
            experiment(
                at,
                logging=mw.Logging(every=5, trackers=(lambda step, values: failing.append("out of order"),)),
            )
        )
    (kept,) = (tmp_path / "temporary").iterdir()
    assert [step for step, _ in losses(kept)] == [4, 5, 8, 10]


def test_an_error_is_in_the_log_at_the_address(memory, at):
    with pytest.raises(DivergedError):
        mw.run(experiment(at, loss=lambda params, batch, key: params["w"].sum() * float("nan")))
    assert b"DivergedError" in files(at)["logs/process-00000.log"]


def test_an_address_that_cannot_be_written_to_is_refused_before_anything_compiles(at, failing):
    failing.append("forbidden")
    with pytest.raises(UsageError, match=f"^workdir: cannot write {at}/.*: forbidden"):
        mw.run(experiment(at))


def test_a_store_that_checkpoints_cannot_be_in_needs_another_for_them():
    with pytest.raises(UsageError, match=r"^save.directory: https://h/x/checkpoints cannot hold[^$]*another"):
        mw.run(experiment("https://h/x"))


@pytest.mark.slow
def test_the_commands_take_the_address_of_a_run(memory, at, capsys):
    assert main(["train", TARGET, f"workdir={at}", "profile.steps=[2]", "steps=4"]) == 0
    assert main(["resume", at, TARGET, "steps=6"]) == 0
    assert "done: step 6" in capsys.readouterr().out
    assert main(["inspect", at]) == 0
    assert "step=6" in capsys.readouterr().out
    assert main(["trace", at]) == 0
    assert f"{at}/plugins/profile/step_2/" in capsys.readouterr().out
    assert main(["report", at]) == 0
    assert f"{at}/report.html" in capsys.readouterr().out
    settings = ["profile.steps=[2]", "steps=6", f"workdir={at}"]
    for other in (at, f"{at}/experiment.txt"):
        assert main(["show", TARGET, *settings, "--against", other]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["resume"], ["trace"], ["report"], ["show", TARGET, "workdir=x", "--against"]], ids=" ".join
)
def test_the_commands_say_what_is_not_there(at, capsys, words):
    assert main([*words, at]) == 3
    assert at in capsys.readouterr().err


def test_a_program_is_written_down_at_an_address(memory, at):
    assert main(["hlo", TARGET, "workdir=unused", "--to", at]) == 0
    assert {"step.dot", "step.hlo.txt"} <= set(files(at))


def test_what_is_suggested_next_can_be_pasted_into_a_shell(at, capsys):
    assert main(["train", TARGET, f"workdir={at} b", "steps=2"]) == 0
    assert f"inspect '{at} b'\n" in capsys.readouterr().out


def test_runs_below_an_address_are_listed_as_those_below_a_directory(at, capsys):
    for name in ("a", "deep/b[1]"):
        mw.run(experiment(f"{at}/{name}", save=mw.Save(directory=f"{at}/{name}/checkpoints")))
    assert main(["runs", f"{at}/", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [each["run"] for each in found] == [f"{at}/deep/b[1]", f"{at}/a"]
    assert [(each["state"], each["step"], each["missing"]) for each in found] == [("finished", 10, [])] * 2
    assert main(["runs", f"{at}/a", "--json"]) == 0
    assert [each["run"] for each in json.loads(capsys.readouterr().out)["runs"]] == [f"{at}/a"]


def test_a_list_of_runs_reads_no_checkpoints(memory, at, monkeypatch):
    mw.run(experiment(f"{at}/a"))
    looked, children = [], memory.children
    monkeypatch.setattr(memory, "children", lambda self, key: looked.append(key) or children(self, key))
    assert main(["runs", at]) == 0
    assert looked
    assert not [path for path in looked if "checkpoints" in path]


def test_a_page_needs_a_bucket(at, capsys):
    mw.run(experiment(at))
    assert main(["report", at, "--to", "s3://page.html"]) == 2
    assert "s3://page.html names only a bucket" in capsys.readouterr().err


class Elsewhere(MemoryFileSystem):
    """A store that fsspec knows, and obstore does not."""

    protocol = "elsewhere"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("elsewhere://", "memory://"))


def test_at_an_address_where_no_checkpoints_can_be_all_else_is(tmp_path):
    fsspec.register_implementation("elsewhere", Elsewhere, clobber=True)
    with pytest.raises(
        UsageError, match=r"elsewhere://a/run/checkpoints .*Expected s3://.*\n.*save.directory"
    ):
        mw.run(experiment("elsewhere://a/run"))
    mw.run(experiment("elsewhere://a/run", save=mw.Save(directory=str(tmp_path / "checkpoints"))))
    assert mw.checkpoints.open_source(tmp_path / "checkpoints").step == 10
    assert "metrics.jsonl" in files("elsewhere://a/run")
