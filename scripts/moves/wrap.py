"""Wrap the prose of docstrings and comments that is longer than 110 characters: python wrap.py"""
import json, re, subprocess, sys
from pathlib import Path
W = 110
def run():
    done = subprocess.run([".venv/bin/ruff", "check", "--select", "E501", "--output-format", "json", "."], capture_output=True, text=True)
    return json.loads(done.stdout)
import ast
def prose(text):
    rows = set()
    for n in ast.walk(ast.parse(text)):
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str): rows |= set(range(n.lineno - 1, n.end_lineno))
    rows |= {i for i, l in enumerate(text.split("\n")) if l.lstrip().startswith("# ")}
    return rows
left = []
for _ in range(30):
    by = {}
    for e in run(): by.setdefault(e["filename"], []).append(e["location"]["row"] - 1)
    changed = False; left = []
    for f, rows in by.items():
        lines = Path(f).read_text().split("\n")
        ok = prose("\n".join(lines))
        for r in sorted(rows, reverse=True):
            if r not in ok: left.append((f, r, lines[r].strip())); continue
            line = lines[r]; s = line.strip()
            indent = line[: len(line) - len(line.lstrip())]
            comment = s.startswith("# ")
            if s.startswith((">>>", "...", "@", "def ", "return ", "assert ")) or re.match(r"^[\w.\[\]\"']+ ?[=(]", s) and not comment and "  " not in s: left.append((f, r, s)); continue
            if not comment and (s.startswith(("f\"", "\"", "'")) and not s.startswith('"""')): left.append((f, r, s)); continue
            cut = line.rfind(" ", 0, W + 1)
            head, tail = line[:cut], line[cut + 1:]
            if head.count("`") % 2: 
                cut = line.rfind(" ", 0, line.rfind("`", 0, W)); head, tail = line[:cut], line[cut + 1:]
            if len(head.strip()) < 20: left.append((f, r, s)); continue
            nxt = lines[r + 1] if r + 1 < len(lines) else ""
            nindent = nxt[: len(nxt) - len(nxt.lstrip())]
            entry = re.match(r"^\*?\*?\w+: ", s) and not s.startswith('"""')
            is_item = re.match(r"^(- |\d+\. )", s)
            want = indent + ("  " if entry or is_item else "")
            prefix = "# " if comment else ""
            closing = tail.endswith('"""') and s.startswith('"""')
            if nxt.strip() and nindent == want and not nxt.strip().startswith((">>>", '"""')) and (not comment or nxt.strip().startswith("#")) and not re.match(r"^\s*(\*?\w+: |- |\w+:$)", nxt):
                body = nxt.strip()[2:] if comment else nxt.strip()
                lines[r] = head; lines[r + 1] = want + prefix + tail + " " + body
            elif closing:
                lines[r:r + 1] = [head, indent + tail[:-3], indent + '"""']
            else:
                lines[r:r + 1] = [head, want + prefix + tail]
            changed = True
        Path(f).write_text("\n".join(lines))
    if not changed: break
for x in left: print(f"{x[0].split('/', 3)[-1]}:{x[1] + 1}: {x[2][:150]}")
print(len(left))
