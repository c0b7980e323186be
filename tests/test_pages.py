"""The code on the pages of the site is run, block after block, as a reader would.

Of a page, in a folder of its own:

- a block of `python` is run, in one namespace for the page; one with a title, `python title="first.py"`, is
  also written to that file, for later blocks to import or start;
- the lines of a block of `sh` that begin with `meshwright` or `python` are run, and must end with 0, or with
  1 where the line says `# ends with 1`. Of `pip install` it is checked that the extras are there;
- a block whose first line is `# not run: REASON` is not run. These are to be rare.

Blocks of other languages (`text`, `yaml`, `console`) are for reading.
"""

import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
import types
from pathlib import Path

import pytest

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parent.parent
FROM = ("flax", "hugging-face", "keras", "levanter", "lightning", "maxtext")
PAGES = [ROOT / "docs/index.md", ROOT / "docs/quickstart.md", *sorted((ROOT / "docs/how-to").glob("*.md"))]
PAGES += [ROOT / f"docs/coming-from-{name}.md" for name in FROM]
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?P<options>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$", re.M | re.S
)
NOT_RUN = re.compile(r"# not run: \w+")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def blocks(page):
    """Yield the language, the title, the code and the line of each block of a page."""
    text = page.read_text()
    for block in BLOCK.finditer(text):
        title = re.search(r'title="([^"]+)"', block["options"])
        line = text.count("\n", 0, block.start()) + 1
        yield block["language"], title and title[1], textwrap.dedent(block["code"]), line


def run_python(page, code, line, names):
    exec(compile("\n" * line + code, str(page), "exec"), names)


def programs(python):
    """Return the commands that stand for programs, also where one starts another."""
    return {"python": python, "meshwright": [*python, "-m", "meshwright"]}


def run_line(words, python, place, ends_with):
    """Run a line of a shell as its reader would, with a Python that has imported JAX already."""
    match words:
        case ["pip", "install", *packages]:
            named = re.findall(r"meshwright\[([\w,]+)\]", " ".join(packages))
            assert {extra for each in named for extra in each.split(",")} <= EXTRAS.keys(), place
            return
        case ["meshwright" | "python", *_]:
            command = [part for word in words for part in programs(python).get(word, [word])]
        case _:
            raise AssertionError(
                f"{place}: {words[0]!r} is not run; begin the block with `# not run: REASON`"
            )
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == ends_with, f"{place}: {shlex.join(words)}\n{done.stdout}\n{done.stderr}"


def run_shell(page, code, line, python):
    joined = code.replace("\\\n", " ")
    for each in joined.splitlines():
        if words := shlex.split(each, comments=True):
            ends_with = re.search(r"# ends with (\d+)", each)
            run_line(words, python, f"{page.name}:{line}", int(ends_with[1]) if ends_with else 0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of its own to be in, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{tmp_path}/"):
            del sys.modules[name]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_on_a_page_runs(page, python, monkeypatch):
    module = types.ModuleType("page")  # for what looks its own module up, as dataclasses do
    monkeypatch.setitem(sys.modules, "page", module)
    for language, title, code, line in blocks(page):
        if NOT_RUN.match(code):
            continue
        if title:
            Path(title).parent.mkdir(parents=True, exist_ok=True)
            Path(title).write_text(code)
        if language == "python":
            run_python(page, code, line, vars(module))
        elif language == "sh":
            run_shell(page, code, line, python)


def test_blocks_of_python_that_are_not_run_are_rare():
    code = [code for page in PAGES for language, _, code, _ in blocks(page) if language == "python"]
    left_out = [each for each in code if NOT_RUN.match(each)]
    assert len(left_out) <= max(1, len(code) // 10)


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in ("index", "quickstart")])
def test_every_test_that_a_page_names_is_there(page):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    assert named
    assert not [each for each in named if f"\ndef {each[1]}(" not in (ROOT / each[0]).read_text()]
