"""Where the time of a run goes, in five sentences, and what would help most."""

import json
import subprocess

import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.observe._profile._summary import exchange_seconds, summarize
from meshwright.observe._profile._xplane import find_profiles
from meshwright.report._explain import explain
from meshwright.report._ledger import Ledger
from meshwright.report._run import read_run
from report import profiled
from report.profiled import SIZES
from report.runs import write_run

CAUSES = ("input", "report", "evaluation", "save", "stall", "lost", "waiting")


def explained(directory, seconds, **more):
    """Return what is said of a run that spent its time so."""
    if not (directory / "metrics.jsonl").exists():
        write_run(directory)
    ledger = Ledger({"step": 60.0, "start": 5.0, "compile": 5.0} | seconds, until=7.0, attempts=1, **more)
    (directory / "ledger.json").write_text(json.dumps(ledger.document()))
    return explain(read_run(directory))


@pytest.mark.parametrize("cause", CAUSES)
def test_the_part_that_takes_most_is_named_with_its_share(tmp_path, cause):
    found = explained(tmp_path, {cause: 30.0})
    assert found.cause == cause
    assert found.first.startswith(f"{cause}, 30.0 % of the run: ")
    assert list(found.sentences) == ["input", "host", "exchanges", "kernels", "saves"]


def test_a_run_that_spends_its_time_on_steps_needs_no_change(tmp_path):
    found = explained(tmp_path, {"step": 1000.0, "save": 10.0})
    assert found.cause is None
    assert found.first == "no cause takes 5.0 % of the run or more."


def test_only_what_is_compiled_again_could_be_kept(tmp_path):
    assert explained(tmp_path, {"compile": 100.0}).cause is None
    again = Ledger({"step": 60.0, "compile": 100.0}, until=7.0, attempts=2)
    (tmp_path / "ledger.json").write_text(json.dumps(again.document()))
    assert explain(read_run(tmp_path)).gains["compile"] == pytest.approx(50 / 160)


def test_of_saves_the_interval_that_their_figures_call_for_is_told(tmp_path):
    found = explained(tmp_path, {"save": 30.0}, failures=2, saves=10)
    assert "by its own figures, every 17.32 s of work" in found.first
    assert "a save costs 3 s" in found.sentences["saves"]


def test_a_slow_process_is_told_among_what_the_host_does(tmp_path):
    write_run(tmp_path)
    slow = "process 2 is slower than the others by 30 % of each step: it waits for examples, on node7"
    (tmp_path / "logs/process-0.log").write_text(f"2026-11-26T20:00:00 WARNING   ! {slow}\n")
    assert slow in explained(tmp_path, {}).sentences["host"]


def test_what_is_missing_is_said_with_how_to_get_it(tmp_path, capsys):
    write_run(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "There is no ledger.json" in said
    assert "There is no profile: `profile.steps=100`" in said
    assert "There is no plan: `meshwright plan" in said
    assert "Exchanges: unknown without a profile." in said


def test_a_plan_stands_beside_what_was_measured(tmp_path, capsys):
    write_run(tmp_path)
    plan = {"time": {"seconds": 0.02, "network": {"data+fsdp": 0.004}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["explanation"]
    assert found["sentences"]["exchanges"].endswith("planned are data+fsdp 4 ms.")
    assert "planned are 20 ms" in found["sentences"]["kernels"]
    assert len(found["missing"]) == 2


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"time": {"seconds": -1, "network": {}}}', '{"time": 3}']
)
def test_what_is_no_plan_is_told_beside_what_the_run_shows(tmp_path, capsys, content):
    write_run(tmp_path)
    (tmp_path / "plan.json").write_text(content)
    assert main(["inspect", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "plan.json is no plan" in said
    assert said.startswith("Input: ")


def axes_of_step(experiment):
    hlo = mw.plan.compile_ahead(experiment).compiled.as_text()
    return {each.axes for each in mw.observe.collectives(hlo, mw.make_mesh(experiment.mesh))}


@pytest.fixture(scope="module")
def profiled_run(tmp_path_factory, python):
    """A run over three axes with a profile, in a process without other programs, and the axes of its step."""
    run = tmp_path_factory.mktemp("runs") / "a"
    subprocess.run([*python, profiled.__file__, str(run)], check=True, stdout=subprocess.DEVNULL, timeout=400)
    return run, axes_of_step(profiled.experiment(run, SIZES))


@pytest.mark.slow
def test_the_time_of_exchanges_is_told_by_mesh_axes(profiled_run):
    run, axes = profiled_run
    found = exchange_seconds(summarize(find_profiles(run)[0]), SIZES)
    assert set(found) == axes
    said = explain(read_run(run)).sentences["exchanges"]
    assert all(f"{'+'.join(axes)} " in said for axes in found)


def test_exchanges_that_programs_of_one_name_tell_differently_are_of_unknown_axes(tmp_path):
    kept = mw.plan.compile_ahead(profiled.experiment(tmp_path / "a", {"fsdp": 2, "tensor": 4}))
    of_run = profiled.experiment(tmp_path / "b", SIZES)
    mw.run(of_run)
    found = exchange_seconds(summarize(find_profiles(tmp_path / "b")[0]), SIZES)
    assert () in found
    assert set(found) - {()} < axes_of_step(of_run)
    del kept  # until then it is among the programs of the process


def test_the_shares_of_a_profiled_step_are_of_the_whole(profiled_run):
    found = explain(read_run(profiled_run[0]))
    assert "layer takes longest" in found.sentences["kernels"]
    assert 0 <= found.gains["exchanges"] <= 1
    assert len(found.missing) == 1
