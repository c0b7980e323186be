"""Move the modules of the old layout: python move.py   (in the root of the repository)"""
import ast, collections, os, re, subprocess, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from table import *

ROOT = Path("src/meshwright")
def git(*words): return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout
tracked = git("ls-files").split("\n")[:-1]
old_files = {}   # old module -> path
for f in tracked:
    if f.startswith("src/meshwright/") and f.endswith(".py"):
        m = f[len("src/meshwright/"):-3].replace("/", ".").removesuffix(".__init__")
        old_files["" if m == "__init__" else m] = Path(f)
is_package = {m for m, p in old_files.items() if p.name == "__init__.py"}

def new_of(m):
    if m in MODULES: return MODULES[m]
    for folder, target in FOLDERS.items():
        if m == folder or m.startswith(folder + "."): return target + m[len(folder):]
    room, dot, rest = m.partition(".")
    return ROOMS.get(room, room) + dot + rest

def package(new): return new.split(".")[0]

# ---- names of old doors
trees = {m: ast.parse(p.read_text()) for m, p in old_files.items()}
doors = {}
for m in is_package - {""}:
    names = {}
    for node in ast.walk(trees[m]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("meshwright"):
            for a in node.names:
                source = (node.module + "." + a.name).removeprefix("meshwright.") 
                names[a.asname or a.name] = ("module", source) if source in old_files else ("name", node.module.removeprefix("meshwright").removeprefix("."), a.name)
    doors[m] = names
def resolve(m, name):
    """('module', old) or ('name', old module, name)"""
    if f"{m}.{name}".removeprefix(".") in old_files and not (m in doors and doors[m].get(name, ("module",))[0] == "name"):
        return ("module", f"{m}.{name}".removeprefix("."))
    if m in doors and name in doors[m]:
        entry = doors[m][name]
        if entry[0] == "module": return entry
        return resolve(entry[1], entry[2])
    return ("name", m, name)

top_names = {n: r for r, ns in TOP.items() for n in ns.split()}
old_top = {}
for node in ast.walk(trees[""]):
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("meshwright."):
        for a in node.names: old_top[a.name] = node.module.removeprefix("meshwright.")
public = {}  # (kind, ...) resolved -> expression
for r, ns in TOP.items():
    for n in ns.split(): public[resolve(r, n)] = f"mw.{n}"
door_names = collections.defaultdict(dict)
for r, (door, ns) in PUBLIC.items():
    for n in ns.split():
        target = resolve(r, n)
        assert target not in public, (r, n)
        assert n not in door_names[door], (door, n)
        public[target] = f"mw.{door}.{n}"
        door_names[door][n] = target
internal = collections.defaultdict(dict)   # package -> name -> resolved target

def where(target):  # (new module, name or None)
    if target[0] == "module": return new_of(target[1]), None
    return new_of(target[1]), target[2]

def want_internal(pkg_of_target, name, target):
    known = internal[pkg_of_target].setdefault(name, target)
    if known != target: problems.append(("CLASH", CURRENT, name, pkg_of_target, known, target))

problems = []
def statements(groups, indent):
    return "\n".join(f"{indent}{line}" for line in sorted(groups))

def rewrite_imports(text, own, deep):
    """Rewrite all imports of ours in a file. own: its new package, or None outside src. deep: import from deep modules."""
    try: tree = ast.parse(text)
    except SyntaxError: return text
    lines = text.split("\n"); renames = []
    edits = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name.startswith("meshwright."): problems.append(("import", a.name))
        if not (isinstance(node, ast.ImportFrom) and node.module and (node.module == "meshwright" or node.module.startswith("meshwright."))): continue
        base = node.module.removeprefix("meshwright").removeprefix(".")
        out = collections.defaultdict(list); 
        for a in node.names:
            alias = a.asname or a.name
            if a.name == "__version__" and own: out["meshwright._version"].append((a.name, a.asname)); continue
            if base == "errors" or a.name == "__version__": out[node.module].append((a.name, a.asname)); continue
            if base == "" and a.name in old_top:
                target = resolve(old_top[a.name], a.name)
                if own is None and target in public:
                    door, _, n = public[target].removeprefix("mw.").rpartition(".")
                    out["meshwright" + ("." + door if door else "")].append((n, a.asname)); continue
            elif base == "" and a.name not in old_files:
                out["meshwright"].append((a.name, a.asname)); problems.append(("name", a.name)); continue
            else: target = resolve(base, a.name)
            new, name = where(target)
            if target[0] == "module":
                if target[1] == "errors": out["meshwright"].append(("errors", a.asname)); continue
                if target[1] in ROOMS and (target[1] in is_package):   # a room as a namespace
                    pkg = package(new)
                    short = alias
                    if pkg == own:
                        for x in sorted(set(re.findall(rf"(?<![\w.]){alias}\.([A-Za-z_]\w*)", text))):
                            t = resolve(target[1], x)
                            if t[0] == "name" and t[1] == target[1] and not defines(t[1], x): continue
                            n, m = where(t)
                            if m is None: n, _, m = n.rpartition(".")
                            out[f"meshwright.{n}"].append((m, None))
                            renames.append((f"{alias}.{x}", x))
                        continue
                    if alias == "process": short = "processes"; renames.append(("process", "processes"))
                    out[f"meshwright.{pkg}"].append(("_internal", short))
                    NAMESPACES.setdefault(CURRENT, {})[alias] = target[1]
                    continue
                parent, _, leaf = new.rpartition(".")
                if own is not None and package(new) != own:
                    want_internal(package(new), alias if a.asname is None else a.name, target)
                    out[f"meshwright.{package(new)}._internal"].append((a.name, a.asname))
                else:
                    out[f"meshwright.{parent}"].append((leaf, None if leaf == alias else alias))
                continue
            if own is not None and package(new) != own:
                want_internal(package(new), a.name, target)
                out[f"meshwright.{package(new)}._internal"].append((a.name, a.asname))
            else:
                out[f"meshwright.{new}"].append((name, alias if alias != name else None))
        new_lines = [f"from {m.replace('meshwright', 'MESHWRIGHT', 1)} import " + ", ".join(n if s is None else f"{n} as {s}" for n, s in names) for m, names in out.items()]
        indent = lines[node.lineno - 1][: node.col_offset]
        if indent.strip(): problems.append(("inline", lines[node.lineno-1])); 
        edits.append((node.lineno - 1, node.end_lineno, [indent + x for x in sorted(new_lines)], lines[node.end_lineno-1].partition("#")[2]))
    for start, end, new, comment in sorted(edits, reverse=True):
        if comment: new[-1] += "  #" + comment
        lines[start:end] = new
    text = "\n".join(lines)
    for a, b in renames:
        if "." in a: text = re.sub(rf"(?<![\w.\"'/]){re.escape(a)}\b", b, text)
        else: text = re.sub(rf"(?<![\w.\"'/]){a}\.(?=[a-z_A-Z])", f"{b}.", text)
    return text

LAZY = (Path(__file__).parent / "lazy.txt").read_text()
NAMESPACES = {}
CURRENT = None
ROOM_RE = "|".join(sorted((r for r in ROOMS), key=len, reverse=True))
def expression(m):
    prefix, room, rest = m[1], m[2], m[3] or ""
    name = rest.split(".")[1] if rest else None
    if prefix not in ("mw", "meshwright"): return m[0]
    if m[0] == "meshwright.checkpoint" and m.string[m.end():m.end() + 1] == '"': return m[0]   # the name of the format
    if name is not None:
        target = resolve(room, name)
        if target[0] == "name" and target[1] == room and room in is_package and not defines(room, name):
            problems.append((CURRENT, "unresolved", m[0]))
            return f"{prefix}.{package(ROOMS[room])}.{name}"
        if target in public: return public[target].replace("mw.", prefix + ".", 1)
        new, n = where(target)
        pkg = package(new)
        if prefix == "meshwright" and room == "cli": return m[0] if target[0] == "name" else "meshwright." + new
        if prefix == "meshwright" and (name.startswith("_") or target[0] == "module"):   # the path of a module
            return "meshwright." + new
        if target[0] == "module" and name.startswith("_"): return f"{prefix}.{new}"
        if name.startswith("__"): return m[0]
        if prefix == "meshwright": return f"meshwright.{pkg}.{name}"
        want_internal(pkg, name, target)
        return f"{prefix}.{pkg}._internal.{name}"
    pkg = package(ROOMS[room])
    if prefix == "mw" and not CURRENT.startswith(("tests", "benchmarks", "scripts")): return f"mw.{pkg}"
    return f"{prefix}.{pkg}._internal" if prefix == "mw" else f"{prefix}.{ROOMS[room]}"
def defines(m, name):
    return any(getattr(n, "name", None) == name or (isinstance(n, (ast.Assign, ast.AnnAssign)) and any(getattr(t, "id", None) == name for t in (n.targets if isinstance(n, ast.Assign) else [n.target]))) for n in trees[m].body)

def text_import(m):
    """An import in a text: a program in a string or on a page."""
    base, names = m[1].removeprefix("meshwright").removeprefix("."), m[2]
    inside = CURRENT.startswith(("tests", "benchmarks", "scripts", "src"))
    out = collections.defaultdict(list)
    for a in names.split(","):
        n, _, alias = (x.strip() for x in a.strip().partition(" as "))
        if base == "" and n == "process": out["meshwright.processes"].append("_internal as processes"); PROCESS[0] = True; continue
        if base == "errors" or n in ("__version__", "errors", ""): return m[0]
        if base == "" and n in old_top and n not in old_files: target = resolve(old_top[n], n)
        else: target = resolve(base, n)
        if target[0] == "name" and target[1] == base and not (base in old_files and defines(base, n)): return m[0]
        new, name = where(target)
        if target in public:
            door, _, x = public[target].removeprefix("mw.").rpartition(".")
            out["meshwright" + ("." + door if door else "")].append(x + (f" as {alias}" if alias else ""))
        elif target[0] == "module":
            parent, _, leaf = new.rpartition(".")
            out[f"meshwright.{parent}" if parent else "meshwright"].append(leaf + (f" as {alias or n}" if (alias or n) != leaf else ""))
        else:
            out[f"meshwright.{new}"].append(name + (f" as {alias}" if alias else ""))
    if len(out) == 1: return "".join(f"from MESHWRIGHT{k.removeprefix('meshwright')} import {', '.join(v)}" for k, v in out.items())
    lead = re.search(r"[^\n]*$", m.string[: m.start()])[0]
    sep = "; " if lead.strip() else "\n" + lead
    return sep.join(f"from MESHWRIGHT{k.removeprefix('meshwright')} import {', '.join(v)}" for k, v in sorted(out.items()))
PROCESS = [False]

def rewrite_expressions(text):
    PROCESS[0] = False
    text = re.sub(r"from (meshwright(?:\.\w+)*) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)", text_import, text)
    for sep in (r"\\.", r"\.", "[.]"):
        e = re.escape(sep)
        def escaped(m):
            x = re.sub(rf"(mw)\.({ROOM_RE})\b((?:\.\w+)?)", expression, m[0].replace(sep, "."))
            for n in [m[0].replace(sep, ".").removeprefix("mw.")]:
                if n in old_top and n not in top_names and n not in old_files: x = public[resolve(old_top[n], n)]
            return x.replace(".", sep)
        text = re.sub(rf"\bmw{e}\w+(?:{e}\w+)?", escaped, text)
    # module paths first: meshwright.a._b.c as far as it is an old module
    def path(m):
        if m[0].startswith("meshwright.cli._") and m[0].count(".") == 2 and m[0].removeprefix("meshwright.") not in old_files: return m[0]
        words = m[0].split(".")[1:]
        for k in range(len(words), 1, -1):
            old = ".".join(words[:k])
            if old in old_files:
                return ".".join(["meshwright", new_of(old), *words[k:]])
        return m[0]
    text = re.sub(r"(?<![\w./])meshwright(?:\.[a-z_0-9]\w*)*\._[a-z]\w*(?:\.\w+)*", path, text)
    text = re.sub(rf"(?<![\w./`])(mw)\.({ROOM_RE})\b(?!\()((?:\.\w+)?)", expression, text)
    text = re.sub(rf"(?<=`)(mw)\.({ROOM_RE})\b(?!\()((?:\.\w+)?)", expression, text)
    text = re.sub(rf"(?<![\w./-])(meshwright)\.({ROOM_RE})\b(?!/)((?:\.\w+)?)", expression, text)
    for n, r in old_top.items():
        if n not in top_names and n not in old_files and n != '__version__':
            text = re.sub(rf"\bmw\.{n}\b", public[resolve(r, n)], text)
    if PROCESS[0]: text = re.sub(r"(?<![\w.\"'/])process\.(?=[a-z_A-Z])", "processes.", text)
    return text

def rewrite_paths(text):
    def sub(m):
        old = m[2].replace("/", ".").removesuffix(".__init__")
        if old not in old_files: return m[0]
        if not m[1] and "/" not in m[2] and CURRENT != "docs/design.md": return m[0]
        new = new_of(old).replace(".", "/") + ("/__init__" if m[2].endswith("/__init__") else "")
        return f"{m[1]}{new}.py"
    return re.sub(r"(src/meshwright/|(?<![\w/.-]))((?:[a-z_0-9]+/)*[a-z_0-9]+)\.py\b", sub, text)

if __name__ == "__main__":
    contents = {}
    for f in tracked:
        p = Path(f)
        if p.is_symlink() or not p.exists(): continue
        if p.suffix not in {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".ipynb", ".json", ".txt", ".html", ""} : continue
        if f.startswith(("tests/golden/run", "requirements/")) or "fixtures" in f: continue
        try: contents[p] = p.read_text()
        except UnicodeDecodeError: continue
    inside = {p: m for m, p in old_files.items()}
    out = {}
    for p, text in contents.items():
        CURRENT = str(p)
        m = inside.get(p)
        if m == "": continue
        own = package(new_of(m)) if m is not None else None
        new = text
        pass
        if p.suffix == ".py": new = rewrite_imports(new, own, deep=own is None)
        new = rewrite_expressions(new)
        new = new.replace("from MESHWRIGHT", "from meshwright")
        if p.suffix in {".md", ".py", ".toml", ".yml"}: new = rewrite_paths(new)
        out[p] = new
    # attributes of namespaces (`processes.x`) must be in the internal doors
    for f, spaces in NAMESPACES.items():
        text = out[Path(f)]
        for alias, room in spaces.items():
            short = "processes" if alias == "process" else alias
            for name in set(re.findall(rf"(?<![\w.]){short}\.([A-Za-z_]\w*)", text)):
                target = resolve(room, name)
                if target[0] == "name" and target[1] == room and not defines(room, name): problems.append((f, short, name)); continue
                want_internal(package(where(target)[0]), name, target)
    # move
    for m, p in old_files.items():
        if m == "": continue
        new = new_of(m)
        q = ROOT / (new.replace(".", "/") + ("/__init__.py" if m in is_package else ".py"))
        text = out.pop(p)
        if p != q:
            q.parent.mkdir(parents=True, exist_ok=True)
            git("mv", str(p), str(q))
        q.write_text(text)
    for f in tracked:   # what is not Python
        p = Path(f)
        if f.startswith("src/meshwright/") and p.suffix != ".py" and p.name != "py.typed":
            room, _, rest = f.removeprefix("src/meshwright/").partition("/")
            q = ROOT / ROOMS[room].replace(".", "/") / rest
            if p != q: git("mv", f, str(q))
    for p, text in out.items():
        if contents[p] != text: p.write_text(text)
    for n in ("choose", "remedies"): want_internal("plan", n, resolve("plan", n))   # by their names, in strings
    for pkg in PACKAGES:
        for name, target in door_names[pkg].items():
            if package(where(target)[0]) != pkg: want_internal(package(where(target)[0]), name, target)
    # doors
    def import_line(new, name, alias, target):
        if target[0] == "module":
            parent, _, leaf = new.rpartition(".")
            return f"    from meshwright.{parent} import {leaf} as {alias}"
        return f"    from meshwright.{new} import {name}" + ("" if name == alias else f" as {alias}")
    def block(names):
        return "\n".join(sorted(import_line(*where(t)[:1], where(t)[1], n, t) for n, t in names.items()))
    def door_block(pkg):
        own = {n: t for n, t in door_names[pkg].items() if package(where(t)[0]) == pkg}
        others = [f"    from meshwright.{package(where(t)[0])}._internal import {n}" for n, t in door_names[pkg].items() if n not in own]
        return "\n".join([*others, block(own)])
    for pkg in PACKAGES:
        folder = ROOT / pkg
        for name, target in door_names[pkg].items():
            if package(where(target)[0]) != pkg: want_internal(package(where(target)[0]), name, target)
        folder.mkdir(exist_ok=True)
        init = folder / "__init__.py"
        head = HEADS.get(pkg)
        if pkg == "cli": pass
        elif pkg in DOORS:
            init.write_text(f'"""{head}"""\n\nfrom typing import TYPE_CHECKING\n\nfrom meshwright._lazy import lazy_names\n\nif TYPE_CHECKING:\n{door_block(pkg)}\nelse:\n    __getattr__, __dir__ = lazy_names(__name__)\n\n__all__ = {sorted(door_names[pkg])!r}\n')
        else: init.write_text(f'"""{head}"""\n')
        if internal[pkg]:
            (folder / "_internal.py").write_text(f'"""The names of `{pkg}` that other packages use. They are loaded when they are first used."""\n\nfrom typing import TYPE_CHECKING\n\nfrom meshwright._lazy import lazy_names\n\nif TYPE_CHECKING:\n{block(internal[pkg])}\nelse:\n    __getattr__, __dir__ = lazy_names(__name__)\n')
    for m in is_package - {""}:   # inner folders have no door
        q = ROOT / new_of(m).replace(".", "/") / "__init__.py"
        if q.parent.parent == ROOT or m in ("formats.readers", "models.gguf", "models.hugging_face", "cli"): continue
        if m.startswith(("demo",)): continue
        head = ast.get_docstring(ast.parse(q.read_text()), clean=False)
        q.write_text(f'"""{head}"""\n')
    for new in set(MODULES.values()):
        init = (ROOT / new.replace(".", "/")).parent / "__init__.py"
        if not init.exists(): init.write_text('"""."""\n'); problems.append(("no head", str(init)))
    top = {n: resolve(r, n) for n, r in top_names.items()}
    (ROOT / "__init__.py").write_text('"""Train any JAX model on one device or thousands, with the same file.\n\nThe most used names are here; the packages, such as `mw.data` and `mw.checkpoints`, have the rest.\nNames are loaded when they are first used, so that `meshwright --help` does not wait for JAX.\n"""\n\nfrom typing import TYPE_CHECKING\n\nfrom meshwright._lazy import lazy_names\nfrom meshwright._version import __version__\n\nif TYPE_CHECKING:\n    from meshwright import ' + ", ".join(DOORS + ["errors"]) + "\n" + block(top) + "\nelse:\n    __getattr__, __dir__ = lazy_names(__name__)\n\n__all__ = " + repr(sorted([*DOORS, *top, "errors", "__version__"])) + "\n")
    (ROOT / "_lazy.py").write_text(LAZY)
    for x in problems: print(*x)
    print({p: len(n) for p, n in internal.items()}, sum(map(len, door_names.values())), len(top) + len(DOORS) + 2)
