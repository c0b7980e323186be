"""What the documents show of the code is the code."""

import contextlib
import dataclasses
import inspect
import re
import shlex
import sys
import textwrap
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optax
import pytest
from scripts import draw_packages, site_hooks

import meshwright as mw
from data.loaders import DataLoader
from engine.experiment import runs
from layers import PACKAGES
from meshwright.cli import main
from meshwright.cli._commands import grammar
from meshwright.cli._parser import flags_of
from meshwright.cli._settings import split

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src/meshwright").rglob("*.py"))


def test_the_program_in_the_readme_runs_and_is_short(tmp_path):
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    assert len([line for line in program.splitlines() if line.strip()]) <= 25
    names = {}
    exec(program, names)
    experiment = names["experiment"](workdir=str(tmp_path / "first"))
    assert mw.run(experiment).step == 500
    losses = [
        report["loss"]
        for report in mw.observe.read_jsonl(tmp_path / "first/metrics.jsonl")
        if "loss" in report
    ]
    assert losses[-1] < losses[0] / 2


def test_the_commands_in_the_readme_are_commands(tmp_path):
    commands = re.findall(r"^(meshwright .*?)(?:\s{2,}#.*)?$", (ROOT / "README.md").read_text(), re.M)
    assert len(commands) == 5
    for command in commands:
        words = shlex.split(command)[1:]
        commands = grammar()
        words, settings = split(words, flags_of(commands.parsers[words[0]]))
        commands.top.parse_args(words)
        assert settings.keys() <= {"mesh", "learning_rate", "workdir"}


def test_the_plan_in_the_readme_can_be_made_as_it_is_shown(tmp_path, monkeypatch, capsys):
    page = (ROOT / "README.md").read_text()
    (tmp_path / "first.py").write_text(re.search(r"```python\n(.*?)```", page, re.S)[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (command,) = re.findall(r"`(meshwright plan [^`]+)`", page)
    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    sys.modules.pop("first", None)
    assert "NVIDIA H100 80GB HBM3:8 · 8 devices" in capsys.readouterr().out


def test_the_first_thing_in_the_readme_is_how_to_install_it():
    first = re.search(r"```\w*\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert first.startswith("pip install ")
    assert set(re.findall(r"\[(\w+)\]", first)) == {"cuda13", "tpu", "cuda12", "cpu"} <= extras.keys()


def test_each_door_has_a_page_in_the_reference():
    doors = {name for name in mw.__all__ if inspect.ismodule(getattr(mw, name))}
    pages = {path.stem for path in (ROOT / "docs/reference").glob("*.md")} - {"index", "top"}
    assert pages == doors


def public_docstrings():
    doors = {"mw": mw} | {f"mw.{name}": getattr(mw, name) for name in mw.__all__ if name in PACKAGES}
    members = {f"{path}.{name}": getattr(door, name) for path, door in doors.items() for name in door.__all__}
    return {name: inspect.getdoc(member) or "" for name, member in members.items() if callable(member)}


def test_the_table_of_unproven_names_has_each_that_its_docstring_calls_so():
    texts = public_docstrings()
    named = re.findall(r"^\| `([\w.]+)` \| never run .+\. \|$", site_hooks.unproven_table(texts), re.M)
    assert "mw.nn.attention" in named
    assert named == [name for name, text in texts.items() if "nproven" in text]


def test_no_other_name_is_called_unproven():
    marked = [line for path in SOURCES for line in path.read_text().splitlines() if "Unproven" in line]
    named = [text for text in public_docstrings().values() if "Unproven" in text]
    assert len(marked) == len(named)


def names_that_are_missing(path):
    pairs = set(re.findall(r"\bmw\.(\w+)(?:\.(\w+))?", path.read_text()))
    top = [name for name, _ in pairs if not hasattr(mw, name) and name not in PACKAGES]
    doors = {(door, name) for door, name in pairs if door in PACKAGES and name not in ("", "_internal")}
    return top + [f"{door}.{name}" for door, name in doors if not hasattr(getattr(mw, door), name)]


def test_each_public_name_in_a_message_or_docstring_is_there():
    missing = {path.name: names for path in SOURCES if (names := names_that_are_missing(path))}
    assert missing == {}


def test_every_claim_is_shown_by_a_file():
    page = (ROOT / "docs/claims.md").read_text()
    assert len(re.findall(r"^\|.*\| `([\w/]+\.py)` \|$", page, re.M)) > 15


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_every_test_and_script_that_a_page_names_is_there(page):
    text = page.read_text()
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert not [name for path, name in tests if f"\ndef {name}(" not in (ROOT / path).read_text()]
    files = re.findall(r"`((?:tests|benchmarks|examples|scripts)/[\w/]+\.py)`", text)
    assert not [path for path in files if not (ROOT / path).is_file()]


def loop_of_the_design():
    return re.search(r"```python\n(.*?)```", (ROOT / "docs/design.md").read_text(), re.S)[1]


def test_the_loop_in_the_design_is_the_loop():
    source = inspect.getsource(mw.fit)
    body = source.rsplit('"""\n', 1)[1]
    assert textwrap.dedent(loop_of_the_design()) == textwrap.dedent(body)


def test_a_copy_of_the_loop_in_the_design_trains_with_public_names_alone():
    doors = (mw.training, mw.engine)
    public = {name: getattr(door, name) for door in doors for name in door.__all__}
    inputs = "step, state, data, max_steps, trace, on_step, evaluate, log, save, stop"
    exec(f"def own_fit({inputs}):\n{loop_of_the_design()}", public)
    saved = []
    state = public["own_fit"](
        step=lambda state, batch: (SimpleNamespace(step=state.step + 1, total=state.total + batch), {}),
        state=SimpleNamespace(step=0, total=0),
        data=iter([1, 2, 3, 4]),
        max_steps=3,
        trace=lambda tick: contextlib.nullcontext(),
        on_step=lambda tick: None,
        evaluate=lambda tick, state: None,
        log=lambda tick, metrics, scores: None,
        save=lambda tick, state, data, scores: saved.append((tick.step, tick.last)),
        stop=lambda tick: False,
    )
    assert state.total == 6
    assert saved == [(1, False), (2, False), (3, False), (3, True)]


def test_every_package_of_the_design_is_there_in_order():
    table = (ROOT / "docs/design.md").read_text().split("\n## Packages\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([a-z]+)` \|", table, re.M) == [*PACKAGES]


def test_the_drawing_of_the_packages_is_that_of_their_imports():
    assert draw_packages.PICTURE.read_text() == draw_packages.picture(), "scripts/draw_packages.py --write"


AXLEARN, SEQAX = ((ROOT / f"docs/coming-from-{name}.md").read_text() for name in ("axlearn", "seqax"))


def test_the_loop_for_those_who_come_from_seqax_trains_and_goes_on(tmp_path):
    names = {}
    exec(re.findall(r"```python\n(.*?)```", SEQAX, re.S)[1], names)
    for steps in (4, 6):
        assert int(names["train"](tmp_path / "run", steps).step) == steps
    found = sorted(path.name for path in (tmp_path / "run").iterdir() if "tfevents" not in path.name)
    assert found == ["checkpoints", "metrics.jsonl", "plugins", "step.dot", "step.hlo.txt", "step.svg"]


def test_reports_for_those_who_come_from_seqax_go_to_an_address_and_are_continued_there(memory, at):
    names = {"mw": mw}
    exec(re.findall(r"```python\n(.*?)```", SEQAX, re.S)[2], names)
    for after in (0, 2):
        with contextlib.ExitStack() as opened:
            write = names["log_at"](at, after, opened)
            write(after + 1, {"loss": 0.5})
            write(after + 2, {"loss": 0.25})
    with mw.data.local_copy(at) as copy:
        assert [each["step"] for each in mw.observe.read_jsonl(copy / "metrics.jsonl")] == [1, 2, 3, 4]
        assert len(list(copy.glob("events.out.tfevents.*"))) == 2


def test_the_experiment_for_those_who_come_from_axlearn_is_one():
    names = {}
    exec(re.findall(r"```python\n(.*?)```", AXLEARN, re.S)[1], names)
    assert names["experiment"](learning_rate=1e-3).max_steps == 2_000


def test_every_field_of_an_experiment_is_in_the_table_for_those_who_come_from_axlearn():
    told = re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", AXLEARN)))
    assert {field.name for field in dataclasses.fields(mw.Experiment)} <= {*told}


def test_the_example_of_mesh_rules_applies_as_it_stands(tmp_path):
    example = textwrap.dedent(mw.parallel.apply_mesh_rules.__globals__["__doc__"].split("\n\n")[1])
    names = {"mw": mw, "experiment": runs.experiment(tmp_path)}
    exec(example, names)
    assert names["experiment"].microbatches == 2


def test_planning_is_where_its_page_says():
    page = (ROOT / "docs/plan.md").read_text()
    assert "`meshwright.plan.plan_step(experiment" in page
    assert callable(mw.plan.plan_step)


def test_the_snippets_about_data_run():
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs/data.md").read_text(), re.S)
    rows = [{"image": np.ones((2, 2), np.float32), "y": np.float32(i)} for i in range(64)]
    texts = [{"tokens": np.ones(n), "mask": np.ones(n)} for n in range(1, 65)]
    of_images = lambda params, batch: ((params["w"] * batch["image"].mean((1, 2)) - batch["y"]) ** 2).mean()
    of_texts = lambda params, batch: mw.Mean.of((params["w"] * batch["tokens"] - 1) ** 2, batch["mask"])
    losses = [of_images, of_images, of_texts]
    for snippet, loss in zip(snippets, losses, strict=True):
        made = mw.Trainer(
            mw.Deployer(0, verbose=False), params={"w": np.float32(1)}, loss=loss, optimizer=optax.sgd(1e-3)
        )
        exec(
            snippet,
            {
                "mw": mw,
                "np": np,
                "trainer": made,
                "dataset": rows,
                "examples": rows,
                "texts": texts,
                "DataLoader": lambda dataset, batch_size, shuffle: DataLoader(dataset, batch_size),
            },
        )
        assert made.step == 4


def test_the_metrics_in_the_page_about_experiments_are_scored(tmp_path):
    page = (ROOT / "docs/experiments.md").read_text()
    described, *_, evaluated = re.findall(r"```python\n(.*?)```", page, re.S)
    names = {}
    exec(described, names)
    exec(evaluated, names)
    experiment = dataclasses.replace(names["experiment"](str(tmp_path)), evaluations=names["evaluations"])
    scores = mw.evaluate(experiment)
    assert scores.keys() == {"guessed/f1", "errors/loss", "errors/rmse"}
    assert scores["errors/rmse"] == pytest.approx(scores["errors/loss"] ** 0.5)
