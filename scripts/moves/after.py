"""Small corrections after the moves, in the root of the repository."""
import re, subprocess
from pathlib import Path
def change(path, *pairs):
    p = Path(path); s = p.read_text()
    for a, b in pairs:
        if a not in s: print("MISSING", path, a[:60])
        s = s.replace(a, b)
    p.write_text(s)
change("src/meshwright/training/_waiting.py", ("from meshwright.processes import _internal as processes", "from meshwright import processes"), ("_WAITING = tuple(f\"{Path(package.__file__).parent}{os.sep}\" for package in (jax, process))", "_JAX = f\"{Path(jax.__file__).parent}{os.sep}\"\n_PROCESSES = Path(processes.__file__).parent"), ("    return frame is not None and frame.f_code.co_filename.startswith(_WAITING)", "    if frame is None:\n        return False\n    file = frame.f_code.co_filename\n    # Folders inside of `processes` look at other processes, and do not wait for them.\n    return file.startswith(_JAX) or Path(file).parent == _PROCESSES"))
change("pyproject.toml", ('"src/meshwright/__init__.py" = ["A004", "F401"] # the names are listed in _NAMES; a test holds the two equal', '"src/meshwright/**/__init__.py" = ["A004", "F401"] # the names of doors\n"src/meshwright/**/_internal.py" = ["A004", "F401"]'))
import shutil
for source in (Path(__file__).parent / "overlay").rglob("*"):
    if source.is_file():
        target = Path(source.relative_to(Path(__file__).parent / "overlay"))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
def cut(path, start, end, new):
    p = Path(path); s = p.read_text(); i = s.index(start); j = s.index(end, i)
    p.write_text(s[:i] + new + s[j:])
H = "tests/test_house.py"
DOORTEXT = '''@functools.cache
def behind_door(module):
    """Return for each name of an internal door the modules that it comes from."""
    if not module.endswith("._internal"):
        return {}
    file = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: [f"{node.module}.{alias.name}", node.module]
        for node in nodes
        for alias in node.names
    }


'''
change(H, ("from layers import FLOORS, GROUND, VERSION", "from layers import PACKAGES, SHARED, may_import"),
  ('import functools\n', 'import functools\nimport importlib\n'))
cut(H, "MAY_IMPORT = {", "LIBRARIES = {", "")
cut(H, "def room_of(path)", "def names_imported", '''def package_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


''')
cut(H, "def rooms_above(path)", "def module_of(path)", '''ARROWS_UP = {("engine", "lm")}


def packages_above(path):
    """Return the packages that a file imports and that do not stand before its own."""
    package = package_of(path)
    imported = {parts[0] for parts in ours(path)} - SHARED - may_import(package)
    return {above for above in imported if (package, above) not in ARROWS_UP}


def test_a_package_imports_only_packages_before_its_own():
    inside = [path for path in FILES if path.parent != PACKAGE]
    assert {package_of(path) for path in inside} == {*PACKAGES}
    assert those_that(packages_above, inside) == {}, "tests/layers.py has the order of the packages"


''')
cut(H, "def private_modules_of_other_rooms", "SETS_FOR_THE_PROCESS", '''def imports_by_another_way(path):
    """Return the modules of other packages that a file imports, but for their `_internal`."""
    elsewhere = [parts for parts in ours(path) if parts[0] not in {package_of(path)} | SHARED]
    return [parts for parts in elsewhere if len(parts) > 2 or parts[1:] not in ([], ["_internal"])]


def test_a_package_takes_names_of_another_from_its_internal_door():
    objections = those_that(imports_by_another_way, [path for path in FILES if path.parent != PACKAGE])
    assert objections == {}, "import from `meshwright.<package>._internal`, and list the name there"


''')
change(H, ("            inner = (f\"{node.module}.{alias.name}\" for alias in node.names)\n            yield from (name if name in modules else node.module for name in inner)", "            for alias in node.names:\n                name = f\"{node.module}.{alias.name}\"\n                yield from [name] if name in modules else behind_door(node.module).get(alias.name, [node.module])"), ("def circles():", DOORTEXT + "def circles():"), ("room_of(path)", "package_of(path)"), ('"demo/digits.npz"', '"cli/demo/digits.npz"'), ('"server/page.html"','"lm/_server/page.html"'))
cut(H, "@pytest.mark.parametrize(\n    \"room\"", "def test_a_name_that_is_not_there", '''DOORS = [*(f"meshwright.{name}" for name in mw.__all__ if name in PACKAGES), "meshwright"]
INTERNAL = [f"meshwright.{name}._internal" for name in PACKAGES if (PACKAGE / name / "_internal.py").exists()]


def names_for_type_checkers(module):
    file = Path(importlib.import_module(module).__file__)
    block = next(node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If))
    return {alias.asname or alias.name for node in block.body for alias in node.names}


@pytest.mark.parametrize("name", DOORS)
def test_a_door_lists_the_names_that_it_imports(name):
    door = importlib.import_module(name)
    assert sorted(door.__all__) == sorted(set(door.__all__))
    assert names_for_type_checkers(name) == set(door.__all__) - {"__version__"}
    assert all(getattr(door, public) is not None for public in door.__all__)


def test_there_are_at_most_40_names_at_the_top_and_300_in_all_doors_and_none_twice():
    names = [name for door in DOORS for name in importlib.import_module(door).__all__]
    assert len(mw.__all__) <= 40
    assert len(names) <= 300
    twice = {name for name in names if names.count(name) > 1}
    assert twice <= {"plan"}  # the package, and its function


@pytest.mark.parametrize("name", INTERNAL)
def test_an_internal_door_has_names_that_are_there_and_that_another_package_imports(name):
    listed = names_for_type_checkers(name)
    assert all(getattr(importlib.import_module(name), each) is not None for each in listed)


''')
change(H, ('OF_OTHERS = {"formats", "tokens", "models", "tuning", "generation", "corpus", "exports"}\n"""The rooms', '''OF_OTHERS = (
    *("checkpoints/_formats/", "data/_tokens/", "data/_corpus/", "engine/_exports/"),
    *("lm/_models/", "lm/_tuning/", "lm/_generation/"),
)
"""The folders'''),
 ('[path for path in FILES if package_of(path) in OF_OTHERS]', '[path for path in FILES if str(path.relative_to(PACKAGE)).startswith(OF_OTHERS)]'))
S = "tests/slow_share.py"
change(S, ("from layers import FLOORS", "from layers import PACKAGES"), ("layers = {package: layer for layer, names in enumerate(FLOORS) for package in names}", "layers = {package: layer for layer, package in enumerate(PACKAGES)}"),
 ('{"checkpoint", "storage"}','{"checkpoints", "base"}'), ('{"checkpoint", "engine", "input", "process"}','{"checkpoints", "engine", "data", "processes"}'), ('{"experiment", "trainer"}','{"engine"}'), ('{"board", "launch", "process"}', '{"launch", "processes"}'), ('{"checkpoint", "engine", "report"}','{"checkpoints", "engine", "report"}'),
 ('{"launch", "plan", "replay", "report"}','{"launch", "plan", "debug", "report"}'), ('    "profiles": {"profile"},\n',''), ('"simulated": {"checkpoint"}','"simulated": {"checkpoints"}'))
T = "tests/test_slow_share.py"
change(T, ("from layers import FLOORS", "from layers import PACKAGES"), ("packages = set().union(*FLOORS)", "packages = {*PACKAGES}"), ('("plan", "cli", "train")', '("plan", "cli", "training")'), ('slow_share.distance({"plan"}, {"train"})','slow_share.distance({"plan"}, {"training"})'), ('slow_share.distance({"train"}, {"cli"})','slow_share.distance({"training"}, {"cli"})'),
 ('"src/meshwright/when.py", "tests/test_when.py"', '"src/meshwright/plan/_site.py", "tests/plan/test_site.py"') if False else ('{"checkpoint", "storage", "when"}', '{"checkpoints", "base", "processes"}'))

change("src/meshwright/engine/_experiment/_auto.py", ('"meshwright.plan:choose"', '"meshwright.plan._internal:choose"'))
change("src/meshwright/engine/_experiment/_run.py", ('"meshwright.plan:remedies"', '"meshwright.plan._internal:remedies"'))
U = "src/meshwright/base/_unknown_arguments.py"
for old, new in {"Decoding": "lm.Decoding", "models.decoder.Config": "lm.decoder.Config", "models.gpt2.Config": "lm.gpt2.Config", "models.t5.Config": "lm.t5.Config"}.items():
    change(U, (f'    "{old}": _instead(', f'    "{new}": _instead('))
change(U, ("such as `models.decoder.Config`", "such as `lm.decoder.Config`"))
for f, m in {"_decoder": 0, "gpt2": "gpt2", "t5": "t5"}.items():
    if m: change(f"src/meshwright/lm/_models/{m}.py", (f'@explained_as("models.{m}.Config")', f'@explained_as("lm.{m}.Config")'))
change("src/meshwright/lm/_models/_config.py", ('@explained_as("models.decoder.Config")', '@explained_as("lm.decoder.Config")'))
for f, n in {"lm/_generation/_decoding.py": "lm.Decoding", "engine/_experiment/_function.py": "engine.EvaluationFunction", "engine/_experiment/_generation.py": "engine.Generation"}.items():
    p = Path("src/meshwright") / f; s = p.read_text()
    p.write_text(s.replace("@explained\n", f'@explained_as("{n}")\n').replace("import documented, explained\n", "import documented, explained_as\n").replace("import explained\n", "import explained_as\n").replace(" explained,", " explained_as,"))
    if '@explained_as' not in p.read_text() or "explained_as" not in p.read_text().split("@explained_as")[0]: print("MISSING", f)
for f in ("_mapped", "_samples"):
    p = Path(f"src/meshwright/data/{f}.py"); p.write_text(p.read_text().replace("mw.{kind}", "mw.data.{kind}"))
change("tests/sharding/test_copies.py", ("setattr(process,", "setattr(processes,"))
