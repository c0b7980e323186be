"""The shape of the house, held: what may import what, and by which door."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright as mw
from layers import PACKAGES, SHARED, may_import
from meshwright.program._internal import TABLE

PACKAGE = Path(mw.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LIBRARIES = {
    "tensorflow",
    "torch",
    "flax",
    "equinox",
    "orbax",
    "grain",
    "tensorstore",
    "zarr",
    "PIL",
    "cramjam",
    "fsspec",
    "obstore",
    "ray",
    "tokenizers",
    "lm_eval",
    "fastapi",
    "gguf",
    "uvicorn",
    "pyarrow",
    "pynvml",
}
TRACKERS = {"wandb", "clearml", "mlflow", "trackio"}
OPTIONAL = LIBRARIES | TRACKERS


def package_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def names_imported(path):
    """Yield all modules that a file imports, wherever in it, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            yield from (
                (f"{module}.{alias.name}" for alias in node.names) if module == "meshwright" else (module,)
            )


@functools.cache
def imports(path):
    return tuple(names_imported(path))


def those_that(offends, files=FILES):
    """Return the files to which a function has an objection, each with it."""
    found = {str(path.relative_to(PACKAGE)): offends(path) for path in files}
    return {name: objection for name, objection in found.items() if objection}


def ours(path):
    return [name.split(".")[1:] for name in imports(path) if name.startswith("meshwright.")]


def packages_above(path):
    """Return the packages that a file imports and that do not stand before its own."""
    package = package_of(path)
    return {parts[0] for parts in ours(path)} - SHARED - may_import(package)


def test_a_package_imports_only_packages_before_its_own():
    inside = [path for path in FILES if path.parent != PACKAGE]
    assert {package_of(path) for path in inside} == {*PACKAGES}
    assert those_that(packages_above, inside) == {}, "tests/layers.py has the order of the packages"


def packages_above_by_string(path):
    """Return the packages above its own that a file names in a string, to import them later."""
    texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    matches = [re.fullmatch(r"meshwright\.(\w+)[\w.]*:\w+", text) for text in texts if isinstance(text, str)]
    return {match[1] for match in matches if match} - may_import(package_of(path))


def test_no_string_names_a_package_above_to_import_it():
    assert those_that(packages_above_by_string, [path for path in FILES if path.parent != PACKAGE]) == {}


def module_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(path, modules):
    """The modules of ours that a file imports, those for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from (
                    [name] if name in modules else behind_door(node.module).get(alias.name, [node.module])
                )
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@functools.cache
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


def circles():
    """The sets of modules, each of which imports all others of the set by way of others."""
    # The package itself names all that it has, for type checkers; of it others take the version alone.
    modules = {module_of(path): path for path in FILES if path != PACKAGE / "__init__.py"}
    reached = {name: {*modules_imported(path, modules)} & {*modules} for name, path in modules.items()}
    for through in modules:
        for name in modules:
            if through in reached[name]:
                reached[name] = reached[name] | reached[through]
    return {frozenset(m for m in reached[name] if name in reached[m]) for name in modules} - {frozenset()}


def test_no_modules_import_each_other_in_a_circle():
    assert circles() == set(), "these modules import each other; move what both need into a third one"


def imports_by_another_way(path):
    """Return the modules of other packages that a file imports, but for their `_internal`."""
    elsewhere = [parts for parts in ours(path) if parts[0] not in {package_of(path)} | SHARED]
    return [parts for parts in elsewhere if len(parts) > 2 or parts[1:] not in ([], ["_internal"])]


def test_a_package_takes_names_of_another_from_its_internal_door():
    objections = those_that(imports_by_another_way, [path for path in FILES if path.parent != PACKAGE])
    assert objections == {}, "import from `meshwright.<package>._internal`, and list the name there"


SETS_FOR_THE_PROCESS = re.compile(
    r"^ *global |os\.environ\[[^\]]+\] = |environ\.(setdefault|update)\(|sys\.modules(\[[^\]]+\] =| \|=)"
    r"|sys\.excepthook =|(os\.register_at_fork|atexit\.register|gc\.disable|gc\.freeze|signal\.signal)\("
    r"|(jax\.config\.update|faulthandler\.dump_traceback_later)\(",
    re.MULTILINE,
)


def test_what_holds_for_the_whole_process_is_set_where_the_design_says():
    design = (PACKAGE.parents[1] / "docs/design.md").read_text()
    table = design.partition("## The whole process")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `([\w/]+\.py)` \|", table, re.MULTILINE))
    inside = (path for path in FILES if package_of(path) not in ("cli", "launch"))
    found = {
        str(path.relative_to(PACKAGE)) for path in inside if SETS_FOR_THE_PROCESS.search(path.read_text())
    }
    assert found == named, "list the file in docs/design.md, under `The whole process`, with what it sets"


def primitives_in(path):
    """Return the names of primitives that a file has, and whether it reads parameters of equations."""
    text = path.read_text()
    names = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    is_reader = "program._internal import" in text
    return names & {*TABLE, "pjit", "remat2"} if is_reader else "eqn.params" in text


def test_jaxprs_are_decoded_in_program_and_where_the_design_says():
    design = (PACKAGE.parents[1] / "docs/design.md").read_text()
    table = design.partition("**A jaxpr is decoded in one place.**")[2].partition("\n**")[0]
    named = set(re.findall(r"^\| `([\w/]+\.py)` \|", table, re.MULTILINE))
    outside = [path for path in FILES if package_of(path) != "program"]
    found = {str(path.relative_to(PACKAGE)) for path in outside if primitives_in(path)}
    assert found == named, "ask `program`, or list the file in docs/design.md with the reason"


def test_keys_are_made_in_one_place_so_that_they_are_of_one_kind():
    makers = [path for path in FILES if any(call in path.read_text() for call in ("random.key(", "PRNGKey("))]
    assert makers == [PACKAGE / "training/_keys.py"], "make keys by `train.key_of`"


def test_nothing_private_of_jax_is_imported():
    assert (
        those_that(lambda path: [name for name in imports(path) if name.startswith(("jax._", "jaxlib"))])
        == {}
    )


def test_the_way_of_data_is_that_of_the_imports():
    design = (PACKAGE.parents[1] / "docs/design.md").read_text()
    drawn = re.findall(r"^(\w+) → (\w+)", design.partition("## The way of data")[2].partition("## ")[0], re.M)
    there = {(package_of(path), parts[0]) for path in FILES for parts in ours(path)}
    assert len(drawn) > 15
    assert not [arrow for arrow in drawn if arrow not in there or arrow[::-1] in there]


def test_the_loop_stays_short():
    tree = ast.parse((PACKAGE / "training/_loop.py").read_text())
    fit = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "fit")
    body = fit.body[1:]
    assert body[-1].end_lineno - body[0].lineno + 1 <= 21


def test_the_package_holds_code_and_the_few_files_that_it_reads():
    others = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    }
    known = {"cli/demo/digits.npz", "py.typed", "lm/_server/page.html", "report/page.css", "report/sort.js"}
    assert others == known, "the package gets a new file that is not code: is it meant to be installed?"


def modules_that_are_missing(path):
    """Return the modules that the first lines of a folder name and that are not in the folder."""
    head = ast.get_docstring(ast.parse(path.read_text()))
    names = re.findall(r"(?<![\w./])_[a-z]\w*(?:/\w+)?(?![\w…])", head or "")
    folder = path.parent
    return [name for name in names if not ((folder / name).is_dir() or (folder / f"{name}.py").is_file())]


def test_the_modules_that_the_first_lines_of_a_folder_name_are_there():
    assert those_that(modules_that_are_missing, [path for path in FILES if path.name == "__init__.py"]) == {}


DOORS = [*(f"meshwright.{name}" for name in mw.__all__ if name in PACKAGES), "meshwright"]
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
    assert [name for name in names if names.count(name) > 1] == []


@pytest.mark.parametrize("name", INTERNAL)
def test_an_internal_door_has_names_that_are_there_and_that_another_package_imports(name):
    listed = names_for_type_checkers(name)
    assert all(getattr(importlib.import_module(name), each) is not None for each in listed)


def test_a_name_that_is_not_there_is_an_ordinary_error():
    with pytest.raises(AttributeError, match="no attribute 'trainn'"):
        mw.trainn  # noqa: B018


def test_using_everything_loads_nothing_optional():
    script = (
        "import sys, meshwright as mw\n"
        "[getattr(mw, name) for name in mw.__all__]\n"
        f"print({OPTIONAL} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


OF_OTHERS = (
    *("checkpoints/_formats/", "data/_tokens/", "data/_corpus/", "engine/_exports/"),
    *("lm/_models/", "lm/_tuning/", "lm/_generation/"),
)
"""The folders that read what others have written, who may have put a pipe or a device there."""
OPENING = {
    "read_bytes",
    "read_text",
    "open",
    "memmap",
    "fromfile",
    "load",
    "safe_open",
    "ParquetFile",
    "from_file",
}
GUARDED = {
    # To write a file that the caller names, which is made new.
    "data/_corpus/_work.py": {"open"},
    "data/_corpus/_store.py": {"open"},  # the lock, made by `_work`
    "checkpoints/_formats/_export_npz.py": {"open"},
    "checkpoints/_formats/_inspect.py": {"open"},
    "checkpoints/_formats/_export_safetensors.py": {"open"},
    # What is in a file that is open already.
    "data/_corpus/_readers.py": {"ParquetFile"},
    "checkpoints/_formats/readers/_npz.py": {"open"},
    "data/_corpus/_blocks.py": {"memmap"},
    # TensorStore: `store_of` looks at all files first; these are of it or in memory.
    "checkpoints/_formats/_export_seqax.py": {"open"},
    "checkpoints/_formats/readers/_orbax.py": {"open"},
    "checkpoints/_formats/readers/_tensorstore.py": {"open"},
    "checkpoints/_formats/readers/_zarr2.py": {"open"},
    # With a check of their own, beside the line.
    "checkpoints/_formats/readers/_file.py": {"open"},
    "lm/_models/hugging_face/_folder.py": {"open"},
    "data/_corpus/_files.py": {"read_bytes"},  # of an object in a store
    # The field of a reader.
    "checkpoints/_formats/readers/_reader.py": {"open"},
}


def ways_around_the_guard(path):
    tree = ast.parse(path.read_text())
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called}
    return (names & OPENING) - GUARDED.get(str(path.relative_to(PACKAGE)), set())


def test_files_of_others_are_opened_by_storage_and_documents_alone():
    found = those_that(
        ways_around_the_guard,
        [path for path in FILES if str(path.relative_to(PACKAGE)).startswith(OF_OTHERS)],
    )
    assert found == {}, "open these by `documents` or `storage`, which refuse pipes and devices"
    unused = {
        file: names - set(re.findall(r"(\w+)\(", (PACKAGE / file).read_text()))
        for file, names in GUARDED.items()
    }
    assert not any(unused.values()), unused
