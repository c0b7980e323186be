"""The figures of `make measure`."""

import subprocess
import sys
from pathlib import Path

from scripts import measure

PROGRAM = '''"""A module."""

__all__ = ["area"]
# A comment.
PLANNER = "meshwright.plan:search"


def area(width, of):
    """Return an area."""
    found = width * of
    return _once(found)


def _once(number):
    return number
'''


def test_the_figures_of_a_small_package(tmp_path):
    folder = tmp_path / "src/meshwright"
    (folder / "parts").mkdir(parents=True)
    (folder / "__init__.py").write_text('__all__ = ["area"]\n')
    (folder / "parts/__init__.py").write_text(PROGRAM)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text("# Three words\n")
    rows, places = measure.figures(tmp_path)
    assert (rows["files"], rows["lines"], rows["lines of code"]) == (2, 16, 8)
    assert rows["names at two doors"] == rows["imports by string"] == 1
    assert rows["vague names, %"] == round(100 * 2 / 9, 1)  # of, found
    assert rows["private functions called once, %"] == 100
    assert not any(places.values())


def test_a_long_function_is_a_place_over_a_limit(tmp_path):
    folder = tmp_path / "src/meshwright"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("def long():\n" + "    print()\n" * 41)
    _, places = measure.figures(tmp_path)
    assert places["body"] == ["__init__.py long: 41"]


def test_an_unknown_commit_is_an_error_in_one_line():
    command = [sys.executable, str(Path(measure.__file__)), "--since", "no-such-commit"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "measure: git has no commit 'no-such-commit', so there is nothing to compare with."
    ]
