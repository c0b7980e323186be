"""Move the tests into folders of the packages' names, in the root of the repository."""
import re, subprocess
from pathlib import Path
def git(*words): return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout
FOLDERS = {"process": "processes", "board": "processes/heartbeat", "machine": "processes/sensors", "sharding": "parallel", "input": "data",
  "corpus": "data/corpus", "tokens": "data/tokens", "metrics": "observe", "profiles": "observe/profile", "hlo": "program/hlo",
  "train": "training", "checkpoint": "checkpoints", "arrays": "checkpoints/arrays", "formats": "checkpoints/formats",
  **{n: f"engine/{n}" for n in "evaluation experiment trainer deployer predictor predict adapters exports".split()},
  **{n: f"lm/{n}" for n in "models generation tuning server".split()}, "replay": "debug", "storage": "base/storage"}
FILES = {f"test_{n}.py": f"base/test_{n}.py" for n in "arguments open_files collector crc32c description documents durable lines patterns protobufs shown tables text_tables tree".split()} | {
  "test_when.py": "processes/test_when.py", "test_events.py": "observe/test_events.py", "test_functions.py": "engine/test_functions.py"}
tracked = git("ls-files", "tests").split("\n")[:-1]
def new_path(f):
    rest = f.removeprefix("tests/")
    if rest in FILES: return "tests/" + FILES[rest]
    folder, slash, inner = rest.partition("/")
    if slash and folder in FOLDERS: return f"tests/{FOLDERS[folder]}/{inner}"
    return f
moved = {f: new_path(f) for f in tracked}
modules = {f.removeprefix("tests/").removesuffix(".py").replace("/", "."): moved[f].removeprefix("tests/").removesuffix(".py").replace("/", ".") for f in tracked if f.endswith(".py")}
packages = {f.split("/")[1] for f in tracked if f.count("/") > 1}
def imports(text):
    def dotted(m):
        words = m[2].split(".")
        for k in range(len(words), 1, -1):
            if ".".join(words[:k]) in modules:
                return m[1] + ".".join([modules[".".join(words[:k])], *words[k:]])
        if words[0] in FOLDERS and (Path("tests") / "/".join(words)).is_dir(): return m[1] + ".".join([FOLDERS[words[0]].replace("/", "."), *words[1:]])
        return m[0]
    def single(m):
        names = [n.strip().split(" ")[0] for n in m[2].strip("()").split(",") if n.strip()]
        if m[1] in FOLDERS and all(f"{m[1]}.{n}" in modules for n in names): return f"from {FOLDERS[m[1]].replace('/', '.')} import {m[2]}"
        return m[0]
    text = re.sub(r"\bfrom (\w+) import ([\w, ]+)", single, text)
    text = re.sub(r'"((\w+)\.(\w+))(?=[":])', lambda m: f'"{modules[m[1]]}' if m[1] in modules and m[2] in FOLDERS else m[0], text)
    return re.sub(r"((?:from|import) )(\w+(?:\.\w+)+)", dotted, text)
def paths(text):
    text = re.sub(r"(?<![\w.])tests/(\w+)(?=/)", lambda m: "tests/" + FOLDERS.get(m[1], m[1]), text)
    for old, new in FILES.items(): text = re.sub(rf"(?<![\w.])tests/{re.escape(old)}", f"tests/{new}", text)
    return re.sub(rf"(?<![\w.])tests/({'|'.join(FOLDERS)})\b(?=[ \n`\"'])", lambda m: "tests/" + FOLDERS[m[1]], text)
for f in git("ls-files").split("\n")[:-1]:
    p = Path(f)
    if p.is_symlink() or not p.exists(): continue
    try: text = p.read_text()
    except UnicodeDecodeError: continue
    new = paths(text)
    if p.suffix == ".py" and f.startswith(("tests/", "benchmarks/")):
        new = imports(new)
        deeper = moved.get(f, f).count("/") - f.count("/")
        if deeper:
            new = re.sub(r"(__file__\)(?:\.resolve\(\))?)\.parents\[(\d)\]", lambda m: f"{m[1]}.parents[{int(m[2]) + deeper}]", new)
            new = re.sub(r"(__file__\)(?:\.resolve\(\))?)\.parent\.parent\b", lambda m: f"{m[1]}.parents[{1 + deeper}]", new)
        if "/golden/" not in f:
            new = re.sub(r'"models/golden', '"lm/models/golden', new).replace('"models" / "golden"', '"lm" / "models" / "golden"').replace('"tokens/golden', '"data/tokens/golden')
    if new != text: p.write_text(new)
for f, q in moved.items():
    if f != q:
        Path(q).parent.mkdir(parents=True, exist_ok=True)
        git("mv", f, q)
