from pathlib import Path
def change(path, *pairs):
    p = Path(path); s = p.read_text()
    for a, b in pairs:
        if a not in s: print("MISSING", path, a[:60])
        s = s.replace(a, b)
    p.write_text(s)
def cut(path, start, end, new):
    p = Path(path); s = p.read_text()
    if start not in s: print("MISSING", path, start); return
    i = s.index(start); j = s.index(end, i)
    p.write_text(s[:i] + new + s[j:])
