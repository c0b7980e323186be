"""Pages and tests of pages, after all moves."""
import re, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from table import *
from after_tools import change, cut
DOORS_ = DOORS + ["errors"]
for page in Path("docs/reference").glob("*.md"):
    if page.stem not in {"index", "commands"}: page.unlink()
for door in DOORS_:
    Path(f"docs/reference/{door}.md").write_text(f"# meshwright.{door} {{ #meshwright.{door} }}\n\n::: meshwright.{door}\n")
cut("mkdocs.yml", "      - Describe and run:\n", "  - Coming from:", "".join(f"      - {d}: reference/{d}.md\n" for d in "engine data parallel training checkpoints observe nn lm plan launch debug report errors".split()))
index = Path("docs/reference/index.md"); s = index.read_text()
i, j = s.index("Made from"), s.index("<!-- names -->")
index.write_text(s[:i] + """Made from the docstrings. `import meshwright as mw` gives the names in this table. The packages in the table have
the rest: `mw.training.keep_ema`, `mw.engine.every`, `mw.observe.jsonl`. Names of other modules are internal, and change
in any version. The [commands](commands.md) have a page of their own.

""" + s[j:])
D = "tests/test_docs.py"
cut(D, "def test_each_public_room_has_a_page", "def test_every_claim", '''def test_each_door_has_a_page_in_the_reference():
    doors = {name for name in mw.__all__ if inspect.ismodule(getattr(mw, name))}
    pages = {path.stem for path in (ROOT / "docs/reference").glob("*.md")} - {"index"}
    assert pages == doors


''')
cut(D, "def test_every_room_of_the_design", "AXLEARN, SEQAX", '''def test_every_package_of_the_design_is_there_in_order():
    table = (ROOT / "docs/design.md").read_text().split("\\n## Packages\\n")[1].split("\\n## ")[0]
    assert re.findall(r"^\\| `([a-z]+)` \\|", table, re.M) == [*PACKAGES]


''')
change(D, ("import meshwright as mw\n", "import meshwright as mw\n"), ("from meshwright.cli import main\n", "from layers import PACKAGES\nfrom meshwright.cli import main\n"))
cut("docs/design.md", "## Rooms\n", "`train` knows" if "`train` knows" in Path("docs/design.md").read_text() else "`training` knows", """## Packages

A package is a folder of `src/meshwright`. It imports only from the packages above it in this table, and it takes names from
`meshwright.<package>._internal` alone. Users take names from the package itself: `__all__` of its `__init__`. Both doors load a
name when it is first used, so that the launcher does not wait for JAX. Modules never import each other in a circle.
`tests/test_house.py` checks this.

| package | contents |
|---|---|
""" + "".join(f"| `{p}` | {c} |\n" for p, c in {
 "base": "names of leaves, patterns, texts, files, stores: the tools that know no JAX program",
 "processes": "start, compare, agree, lock, signals; heartbeats; sensors of hosts and devices; policies of steps",
 "launch": "several processes here, on several machines or on Ray, started again after failures; jobs of schedulers",
 "program": "traced and compiled programs as lists of operations: FLOPs, lookups, memory traffic, communication",
 "parallel": "meshes, rules, layouts, and rules that are inferred from a loss",
 "data": "batches in an exact order; documents and their tokens; tokenizers and chats",
 "observe": "`Mean` and other kinds of values, writers and trackers, profiles",
 "nn": "attention, experts, stacked layers and cross entropy that know the mesh",
 "training": "`TrainState`, the step, the loop, wrappers of optimizers, pipelines, the watchdog",
 "checkpoints": "our format, saving in the background, retention, the memory of hosts; formats of other systems; arrays",
 "report": "pages from the files of runs",
 "engine": "a run; `Experiment`, `Trainer`, `Deployer`, `Predictor`; evaluation, predictions, models of libraries, exports",
 "lm": "language models: reference models, generation, tuning, server",
 "plan": "estimates of a step on hardware that is not here",
 "debug": "a run played again to its first NaN; a program that is killed, continued and compared",
 "cli": "one file a command, and two demos"}.items()) + "\n")
cut("docs/design.md", "```\ncli → ", "```\n\n## Words", """```
cli → engine            a shell's words become an Experiment
plan → engine           an Experiment is made into parts, and traced
debug → engine          a run is played again
engine → training       the step, the loop, the watchdog
engine → data           batches, in an order that is a function of a counter
engine → checkpoints    saving in the background, retention, continuing
engine → observe        reports, on the screen and in files; profiles
engine → report         the page, made from the files alone
engine → processes      readings of this host and its devices; agreement
engine → program        floating-point operations, and their share of the devices' peak
training → parallel     the sharding of each array
training → program      operations between stages
nn → parallel           the mesh of an operation
parallel → program      how a loss uses each dimension
data → base             files on a disk or in a store
checkpoints → base
observe → base
launch → processes      heartbeats of the processes that it starts
""")
P = Path("docs/design.md"); s = P.read_text(); P.write_text(s.replace("`train` knows neither `checkpoint` nor `input`", "`training` knows neither `checkpoints` nor `data`"))
change("CONTRIBUTING.md", ("**A room.** A folder with an `__init__.py` that says what it holds and what it may import; a row of the table in\n`docs/design.md` and a place in `FLOORS` of `tests/test_house.py`; a page in `docs/reference/` and in `mkdocs.yml`.",
 "**A public name.** A line in the `__init__.py` of its package, under `if TYPE_CHECKING:` and in `__all__`; a docstring with an example.\nA name that another package uses is a line of the package's `_internal.py`."))
# the way of data of the test: packages
change("tests/test_house.py", ("drawn = re.findall(r\"^(\\w+) → (\\w+)\"", "drawn = re.findall(r\"^(\\w+) → (\\w+)\""))

change("tests/test_words.py", ('ROOMS = sorted(path.stem for path in Path(mw.__file__).parent.glob("[a-z]*") if path.suffix in ("", ".py"))', 'DOORS = sorted(name for name in mw.__all__ if inspect.ismodule(getattr(mw, name)))'), ("for room in ROOMS", "for room in DOORS"))
change("tests/test_migration_pages.py", ("from test_words import ROOMS", "from test_words import DOORS"), ("for room in ROOMS", "for room in DOORS"))
change("tests/test_migration_pages.py", ('''    for room in DOORS:
        module = import_module(f"meshwright.{room}")
''', '''    for module in MODULES:
'''), ('''CLASSES = {''', '''MODULES = [mw, *(getattr(mw, door) for door in DOORS if door != "errors")]
CLASSES = {'''), ('''    for name, value in vars(import_module(f"meshwright.{room}")).items()
    if inspect.isclass(value) and name in getattr(import_module(f"meshwright.{room}"), "__all__", ())
} | {name: value for name in mw.__all__ if inspect.isclass(value := getattr(mw, name))}''','''    for name in module.__all__
    if inspect.isclass(value := getattr(module, name))
}'''), ("    for room in DOORS\n", "    for module in MODULES\n"), ('''    yield from ((name, getattr(mw, name)) for name in mw.__all__ if callable(getattr(mw, name)))
''',''), ("from importlib import import_module\n", ""), ('        for name in getattr(module, "__all__", ()):\n', '        for name in module.__all__:\n'))
SRC = Path("src/meshwright")
(SRC / "training/_pipeline/__init__.py").write_text('"""Stages of a pipeline: the layers of a loss are split over devices, and microbatches go through them in turn."""\n')
(SRC / "training/_compile/__init__.py").write_text('"""Options of the compiler, and compiled programs that are kept for the next start."""\n')
for init in SRC.rglob("__init__.py"):
    s = init.read_text()
    new = re.sub(r"[ \n](It may|May)\s+import[^.]*\.", "", s.partition('"""\n')[0] if False else s) if "ay\nimport" in s or "ay import" in s else s
    if new != s: init.write_text(new)
for old, new in MODULES.items():
    a, b = old.split(".")[-1], new.split(".")[-1]
    if a == b: continue
    folder = SRC / Path(*new.split(".")[:-1])
    for f in folder.rglob("*.py"):
        s = f.read_text()
        n = s.replace(f"`{a}`", f"`{b}`").replace(f"`{a}.py`", f"`{b}.py`")
        if n != s: f.write_text(n)
E_ = Path("tests/base/storage/test_everywhere.py"); s = E_.read_text()
i, j = s.index("REFUSE = {"), s.index("PLACES = ")
s = s[:i] + re.sub(r'^    "(?:\w+\.)+(\w+)"([:,])', r'    "\1"\2', s[i:j], flags=re.M) + s[j:]
i, j = s.index("def public():"), s.index("def test_nothing_that_takes_a_path")
s = s[:i] + '''def public():
    """Yield the functions of all doors, those for other packages too, by name."""
    yield from ((name, getattr(mw, name)) for name in mw.__all__)
    for package in set(PACKAGES) - {"cli"}:
        for door in (f"meshwright.{package}", f"meshwright.{package}._internal"):
            module = importlib.import_module(door)
            yield from ((name, getattr(module, name)) for name in dir(module))
    yield from vars(hugging_face).items()
    yield from inspect.getmembers(mw.Deployer)
    yield "predict", mw.Predictor.predict


''' + s[j:]
s = s.replace('''        and f"{one.__module__}.".startswith(f"meshwright.{name.rpartition('.')[0]}.")\n''', '''        and getattr(one, "__module__", "").startswith("meshwright.")\n''')
s = s.replace("import meshwright as mw\n", "import meshwright as mw\nfrom layers import PACKAGES\n", 1)
E_.write_text(s)

change("tests/checkpoints/formats/readers/test_docs.py", (r'r"\bmw\.((?:checkpoint\.)?\w+)"', r'r"\bmw\.(\w+(?:\.\w+)?)"'))
change("tests/slow_share.py", ('    "simulated": {"checkpoints"},', '    "ports": {"engine"},\n    "simulated": {"checkpoints"},'))
