"""The examples in docstrings run, and print what they say."""

import doctest
import types
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw

ROOMS = sorted(path.stem for path in Path(mw.__file__).parent.glob("[a-z]*") if path.suffix in ("", ".py"))
NAMES = {"mw": mw, "jax": jax, "jnp": jnp, "np": np, "optax": optax}


def names_of(door):
    """Return the public names of a room; of one that is a file, those that are defined in it."""
    own = (name for name, value in vars(door).items() if getattr(value, "__module__", "") == door.__name__)
    return getattr(door, "__all__", None) or [name for name in own if not name.startswith("_")]


def documented():
    """Return each public class and function by the name of its room and its own, those of `mw` first."""
    doors = {"mw": mw} | {room: import_module(f"meshwright.{room}") for room in ROOMS}
    named = [
        (f"{room}.{name}", getattr(door, name)) for room, door in doors.items() for name in names_of(door)
    ]
    kinds = (type, types.FunctionType)
    first = {id(value): (name, value) for name, value in reversed(named) if isinstance(value, kinds)}
    return dict(reversed(first.values()))


DOCUMENTED = documented()
SHOWN = {name: doctest.DocTestFinder(recurse=True).find(value, name) for name, value in DOCUMENTED.items()}
EXAMPLES = {test.name: test for tests in SHOWN.values() for test in tests if test.examples}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_a_docstring_runs_and_prints_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = EXAMPLES[name]
    example.globs.update(NAMES)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    said = []
    failed, _ = doctest.DocTestRunner(verbose=False, optionflags=flags).run(example, out=said.append)
    assert not failed, "".join(said)


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name.startswith("mw.")])
def test_a_public_class_or_function_shows_an_example(name):
    assert SHOWN[name][0].examples
