"""The examples in docstrings run, and print what they say."""

import doctest
import pkgutil
import shutil
import types
from importlib import import_module
from pathlib import Path

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


TESTS = Path(__file__).parent
FOLDERS = {"llama": TESTS / "lm/models/golden/llama", "adapter": TESTS / "lm/tuning/golden/llama"}
"""The folders of Hugging Face's files that examples name."""
TESTED_ELSEWHERE = {
    # A checkpoint of TensorFlow, which only TensorFlow writes.
    "mw.checkpoints.open_tensorflow": "checkpoints/formats/readers/test_t5.py",
    # A cluster, which `make test-clusters` starts.
    "mw.launch.launch_ray": "clusters/test_ray.py",
    # Packages of others, and what they evaluate on; they are not installed, or load for seconds.
    "mw.lm.lm_eval": "lm/generation/test_harness.py",
    "mw.lm.task_scores": "lm/generation/golden/harness/make.py",
    "mw.observe.clearml": "observe/test_trackers.py",
    "mw.observe.mlflow": "observe/test_trackers.py",
    "mw.observe.trackio": "observe/test_trackers.py",
    "mw.observe.wandb": "observe/test_wandb.py",
    # A whole run.
    "mw.lm.tune": "lm/tuning/test_tune.py",
    "mw.lm.write_best": "lm/tuning/test_tune.py",
}
"""The public names whose examples are shown and not run, and the file that runs them."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_a_docstring_runs_and_prints_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = EXAMPLES[name]
    for folder, source in FOLDERS.items():
        if f'"{folder}"' in example.docstring:
            shutil.copytree(source, folder)
    example.globs.update(NAMES)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    output = []
    failed, _ = doctest.DocTestRunner(verbose=False, optionflags=flags).run(example, out=output.append)
    assert not failed, "".join(output)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_class_or_function_shows_an_example_that_runs(name):
    examples = FINDER.find(PUBLIC[name], name)[0].examples
    runs = [example for example in examples if not example.options.get(doctest.SKIP)]
    assert examples
    assert bool(runs) != (name in TESTED_ELSEWHERE)


@pytest.mark.parametrize("name", TESTED_ELSEWHERE)
def test_a_name_whose_example_is_not_run_is_in_the_file_that_runs_it(name):
    assert name.rpartition(".")[2] in (TESTS / TESTED_ELSEWHERE[name]).read_text()
