"""The examples in docstrings run, and print what they say."""

import doctest
import pkgutil
import types
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from layers import PACKAGES

NAMES = {"mw": mw, "jax": jax, "jnp": jnp, "np": np, "optax": optax}
KINDS = (type, types.FunctionType)
DOORS = {"mw": mw} | {f"mw.{name}": getattr(mw, name) for name in mw.__all__ if name in PACKAGES}
PUBLIC = {
    f"{door}.{name}": value
    for door, module in DOORS.items()
    for name in module.__all__
    if isinstance(value := getattr(module, name), KINDS)
}


def defined():
    """Return each function and class of the package, by its module and name."""
    modules = [m.name for m in pkgutil.walk_packages(mw.__path__, "meshwright.") if "__main__" not in m.name]
    return {
        f"{name}.{value.__qualname__}": value
        for name in modules
        for value in vars(import_module(name)).values()
        if isinstance(value, KINDS) and value.__module__ == name
    }


FINDER = doctest.DocTestFinder(recurse=True)
EXAMPLES = {
    test.name: test
    for name, value in defined().items()
    for test in FINDER.find(value, name.removeprefix("meshwright."))
    if test.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_a_docstring_runs_and_prints_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = EXAMPLES[name]
    example.globs.update(NAMES)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    output = []
    failed, _ = doctest.DocTestRunner(verbose=False, optionflags=flags).run(example, out=output.append)
    assert not failed, "".join(output)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.count(".") == 1])
def test_a_public_class_or_function_shows_an_example(name):
    assert FINDER.find(PUBLIC[name], name)[0].examples
