"""Packages that an extra installs."""

import ast
import tomllib
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.base._internal import import_extra
from meshwright.errors import UsageError

PACKAGE = Path(mw.__file__).parent
BY_VARIABLE = {"wandb", "clearml", "mlflow", "trackio", "flax", "equinox"}
"""The extras of trackers and of libraries for models, which have the names of the packages."""


def extras_named():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_extra", "not_installed"):
                yield from (
                    each.value.value
                    for each in node.keywords
                    if each.arg == "extra" and isinstance(each.value, ast.Constant)
                )


def test_every_extra_that_an_error_names_is_in_pyproject():
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    named = {*extras_named()}
    assert len(named) >= 8
    assert named | BY_VARIABLE <= set(project["optional-dependencies"])


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    (tmp_path / "needy.py").write_text("import absent_dependency.part")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as error:
        import_extra("needy", extra="serve", needed_by="the server")
    assert str(error.value) == (
        "the server needs the package absent_dependency, which is not installed.\n"
        "  Install it: pip install 'meshwright[serve]'."
    )


def test_a_package_that_is_there_and_broken_raises_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("raise ImportError('libfoo.so is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="libfoo"):
        import_extra("broken", extra="serve", needed_by="the server")
