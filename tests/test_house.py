"""The shape of the house, held: what may import what, and by which door."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright as mw
from layers import FLOORS, GROUND, VERSION

PACKAGE = Path(mw.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MAY_IMPORT = {
    # train is handed its save and its data; it knows neither checkpoints nor sources.
    "train": {"program", "sharding", "metrics"},
    "hlo": set(),
    "profile": {"hlo"},
    "program": set(),
    "nn": {"sharding", "metrics"},
    "checkpoint": {"arrays"},
    "launch": set(),
}
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


def room_of(path):
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


def rooms_above(path):
    """Return the rooms that a file imports and that are not below its own."""
    room = room_of(path)
    floor = next((i for i, rooms in enumerate(FLOORS) if room in rooms), None)
    assert floor is not None, f"{room} is a new room: give it a floor in FLOORS, here, and in docs/design.md"
    below = set().union(*FLOORS[:floor])
    allowed = (MAY_IMPORT[room] | GROUND if room in MAY_IMPORT else below) | {room}
    if room in GROUND:
        allowed |= GROUND
    return {parts[0] for parts in ours(path)} - allowed


def test_a_room_imports_only_the_floors_below():
    found = those_that(rooms_above, [path for path in FILES if path.parent != PACKAGE])
    assert found == {}, "these files import rooms of their own floor or above; docs/design.md has the floors"


def reads_by_locale(path):
    """Return the lines of a file that read or write text in whatever encoding the user's locale has."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        is_method, words = isinstance(node.func, ast.Attribute), {word.arg for word in node.keywords}
        name = node.func.attr if is_method else getattr(node.func, "id", "")
        texts = [arg.value for arg in node.args if isinstance(getattr(arg, "value", None), str)]
        opens_text = name in ("open", "fdopen") and any(re.fullmatch(r"[rwax][+t]?", text) for text in texts)
        is_file = is_method and (name, len(node.args)) in (("read_text", 0), ("write_text", 1))
        runs = name in ("run", "Popen") and "text" in words
        if (opens_text or is_file or runs or name == "FileHandler") and "encoding" not in words:
            lines.append(node.lineno)
    return lines


def test_text_is_read_and_written_as_utf_8_in_every_locale():
    found = those_that(reads_by_locale)
    found.pop("formats/_export_npz.py")  # a member of an archive, which is bytes
    assert found == {}


def module_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_imported(path, modules):
    """The modules of ours that a file imports, those for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else node.module for name in inner)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


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


def private_modules_of_other_rooms(path):
    elsewhere = [parts for parts in ours(path) if parts[0] not in {room_of(path)} | VERSION]
    return [parts for parts in elsewhere if any(part.startswith("_") for part in parts)]


def test_rooms_are_entered_by_the_door():
    found = those_that(private_modules_of_other_rooms)
    assert found == {}, "import from the room's __init__.py, and list the name there"


SETS_FOR_THE_PROCESS = re.compile(
    r"^ *global |os\.environ\[[^\]]+\] = |environ\.(setdefault|update)\(|sys\.modules(\[[^\]]+\] =| \|=)"
    r"|sys\.excepthook =|(os\.register_at_fork|atexit\.register|gc\.disable|gc\.freeze|signal\.signal)\("
    r"|(jax\.config\.update|faulthandler\.dump_traceback_later)\(",
    re.MULTILINE,
)


def test_what_holds_for_the_whole_process_is_set_where_the_design_says():
    design = (PACKAGE.parents[1] / "docs/design.md").read_text()
    named = set(re.findall(r"^\| `([\w/]+\.py)` \|", design, re.MULTILINE))
    inside = (path for path in FILES if room_of(path) not in ("cli", "launch"))
    found = {
        str(path.relative_to(PACKAGE)) for path in inside if SETS_FOR_THE_PROCESS.search(path.read_text())
    }
    assert found == named, "list the file in docs/design.md, under `The whole process`, with what it sets"


def test_keys_are_made_in_one_place_so_that_they_are_of_one_kind():
    makers = [path for path in FILES if any(call in path.read_text() for call in ("random.key(", "PRNGKey("))]
    assert makers == [PACKAGE / "train/_keys.py"], "make keys by `train.key_of`"


def test_nothing_private_of_jax_is_imported():
    assert (
        those_that(lambda path: [name for name in imports(path) if name.startswith(("jax._", "jaxlib"))])
        == {}
    )


def test_the_way_of_data_is_that_of_the_imports():
    design = (PACKAGE.parents[1] / "docs/design.md").read_text()
    drawn = re.findall(r"^(\w+) → (\w+)", design.partition("## The way of data")[2].partition("## ")[0], re.M)
    there = {(room_of(path), parts[0]) for path in FILES for parts in ours(path)}
    assert len(drawn) > 15
    assert not [arrow for arrow in drawn if arrow not in there or arrow[::-1] in there]


def test_the_loop_stays_short():
    tree = ast.parse((PACKAGE / "train/_loop.py").read_text())
    fit = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "fit")
    body = fit.body[1:]
    assert body[-1].end_lineno - body[0].lineno + 1 <= 21


def test_the_package_holds_code_and_the_few_files_that_it_reads():
    others = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    }
    known = {"demo/digits.npz", "py.typed", "server/page.html", "report/page.css", "report/sort.js"}
    assert others == known, "the package gets a new file that is not code: is it meant to be installed?"


@pytest.mark.parametrize(
    "room", sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py") if p.parent.name != "demo")
)
def test_what_a_door_lists_is_there_and_in_order(room):
    door = __import__(f"meshwright.{room}", fromlist=["__all__"])
    assert all(hasattr(door, name) for name in door.__all__)
    assert sorted(door.__all__) == sorted(set(door.__all__))


def test_type_checkers_see_the_names_that_are_loaded_when_used():
    block = next(node for node in ast.parse(Path(mw.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen | {"__version__"} == set(mw.__all__) | set(mw._MORE_ROOMS)
    assert all(getattr(mw, name) is not None for name in mw.__all__)


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


OF_OTHERS = {"formats", "tokens", "models", "tuning", "generation", "corpus", "exports"}
"""The rooms that read what others have written, who may have put a pipe or a device there."""
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
    "corpus/_work.py": {"open"},
    "corpus/_store.py": {"open"},  # the lock, made by `_work`
    "formats/_export_npz.py": {"open"},
    "formats/_pins.py": {"open"},
    "formats/_safetensors.py": {"open"},
    # What is in a file that is open already.
    "corpus/_columns.py": {"ParquetFile"},
    "formats/readers/_npz.py": {"open"},
    "corpus/_blocks.py": {"memmap"},
    # TensorStore: `store_of` looks at all files first; these are of it or in memory.
    "formats/_export_seqax.py": {"open"},
    "formats/readers/_orbax.py": {"open"},
    "formats/readers/_tensorstore.py": {"open"},
    "formats/readers/_zarr.py": {"open"},
    "formats/readers/_zarr2.py": {"open"},
    # With a check of their own, beside the line.
    "formats/readers/_file.py": {"open"},
    "models/hugging_face/_companions.py": {"open"},
    "corpus/_files.py": {"read_bytes"},  # of an object in a store
    # The field of a reader.
    "formats/readers/_reader.py": {"open"},
}


def ways_around_the_guard(path):
    tree = ast.parse(path.read_text())
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called}
    return (names & OPENING) - GUARDED.get(str(path.relative_to(PACKAGE)), set())


def test_files_of_others_are_opened_by_storage_and_documents_alone():
    found = those_that(ways_around_the_guard, [path for path in FILES if room_of(path) in OF_OTHERS])
    assert found == {}, "open these by `documents` or `storage`, which refuse pipes and devices"
    unused = {
        file: names - set(re.findall(r"(\w+)\(", (PACKAGE / file).read_text()))
        for file, names in GUARDED.items()
    }
    assert not any(unused.values()), unused
