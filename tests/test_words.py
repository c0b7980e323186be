"""One word for one thing: no public name is one of those that the table of words in the design leaves out."""

import argparse
import inspect
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.cli._commands import grammar

DESIGN = Path(__file__).parents[1] / "docs" / "design.md"
PAGES = sorted((*DESIGN.parent.rglob("*.md"), *DESIGN.parents[1].glob("*.md")))
NAMED = re.compile(r"(?<![\w./])mw((?:\.[A-Za-z_]\w*)+)(?!\.py)")
ROW = re.compile(r"^\| `(?P<word>[^`]+)` \| .+ \| (?P<others>.+) \|$", re.MULTILINE)
DOORS = sorted(name for name in mw.__all__ if inspect.ismodule(getattr(mw, name)))


def table():
    """Return the word to use by each word that it stands for."""
    words = DESIGN.read_text().split("## Words")[1].split("\n## ")[0]
    return {other: row["word"] for row in ROW.finditer(words) for other in row["others"].split(", ")}


def arguments(where, function):
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in
        return {}
    return {f"{where}({name})": name for name in signature.parameters}


def of_class(where, kind):
    """Return the names of the arguments of a class and of its own public methods, and of its fields."""
    methods = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    found = arguments(where, kind) | {f"{where}.{name}": name for name in methods}
    for name, value in methods.items():
        if inspect.isfunction(value):
            found |= arguments(f"{where}.{name}", value)
    return found


def public():
    """Return, by where it is, each name of an argument, a field or a method."""
    found = {}
    for door in DOORS:
        module = import_module(f"meshwright.{door}")
        for name in getattr(module, "__all__", ()):
            value, where = getattr(module, name), f"{door}.{name}"
            if inspect.isclass(value):
                found |= of_class(where, value)
            elif callable(value):
                found |= arguments(where, value)
    return found


def flags(of):
    """Return the words of a command line and of all its commands."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield name
                yield from flags(command)
        yield from (option.lstrip("-").replace("-", "_") for option in action.option_strings)


def check(names):
    instead = table()
    assert len(instead) > 60
    found = {
        where: f"{name}, of which the word is {instead[name]}"
        for where, name in names.items()
        if name in instead
    }
    assert not found


def test_public_names_and_arguments_are_the_words_of_the_table():
    check(public())


def test_flags_are_the_words_of_the_table():
    check({f"--{flag}": flag for flag in flags(grammar().top)})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("words")
    mw.run(experiment(directory, max_steps=2, logging=mw.Logging(every=1)))
    return directory


def test_metrics_are_the_words_of_the_table(run):
    reports = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    check({f"metric {name}": name for report in reports for name in report})


def test_files_of_a_run_are_the_words_of_the_table(run):
    check({f"file {path.name}": path.stem for path in run.rglob("*")})


def is_there(path):
    """Return whether `mw` has what a dotted path names, as far as it names modules, classes and functions."""
    found = mw
    for name in path.split(".")[1:]:
        if not (inspect.ismodule(found) or inspect.isclass(found)):
            return True
        declared = inspect.isclass(found) and name in inspect.signature(found).parameters
        if not (hasattr(found, name) or declared):
            return False
        found = getattr(found, name, None)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_only_what_there_is(page):
    named = set(NAMED.findall(page.read_text()))
    assert not [f"mw{path}" for path in sorted(named) if not is_there(path)]
