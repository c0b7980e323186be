"""What is done to a run: to what its manifests say, and to its files."""

import copy
import json
import os
import random
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ODD: list[Any] = [
    *(None, True, 0, -1, 1, 7, 2**31, 2**62, 2**63, 2**200, -(2**63), 0.5, 1e300, float("inf"), float("nan")),
    *("", "x", "..", "/etc/passwd", "../../outside/precious", "a/../b", "\x1b]0;owned\x07\x1b[2J", "\ud800"),
    *("a\nb", "\0", "/dev/zero", "float64", "int32", "object", "bfloat16", "x" * 70_000, "ü", "\u202e"),
    *(
        [],
        {},
        [[]],
        [0],
        [-1, -1],
        [0, 0],
        [2**40, 2**10],
        [0, 2**62],
        [1] * 100,
        [None],
        {"a": 1},
        [[1, 2, 3, 4]],
    ),
]
DEPTHS = (50, 200, 900, 20_000)
LINES = (
    *(b'{"step": 1e400}', b"[" * 200_000, b'{"step": 3, "loss": "x"}', b"\xff\xfe"),
    *(b'{"step": 99, "\\u001b[2J": 1}', b'{"step": 3, "time": 1e308, "loss": -1e308}'),
)
TEXTS = (
    *(b"\x1b]0;owned\x07", b"\xff\xfe\x00", b"max_steps = " + b"9" * 5000),
    *(b"a.b = f(" * 3000, b"x = " + b"-" * 20_000, b"x = f(a=" + b"-" * 20_000 + b"1)"),
)


def change_manifest(run: Path, chance: random.Random) -> list[str]:
    """Change what a manifest says, and give it the right checksum; return what was done."""
    manifest = chance.choice(sorted(run.glob("checkpoints/step_*/manifest.json")))
    fields = json.loads(manifest.read_bytes())
    del fields["crc32"]
    told = [str(manifest.relative_to(run))]
    told += [_change_one(fields, chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    body = b"{\n" + b",\n".join(_json({key: value})[1:-1] for key, value in fields.items()) + b",\n"
    manifest.write_bytes(body + f'"crc32": {zlib.crc32(body)}}}\n'.encode())
    return told


def damage_run(run: Path, outside: Path, chance: random.Random) -> list[str]:
    """Damage some files of a run; return what was done."""
    return [_damage_one(run, outside, chance) for _ in range(chance.choice((1, 1, 1, 2, 4)))]


def _json(value: Any) -> bytes:
    said = json.dumps(value).encode()
    return re.sub(rb'"@deep(\d+)@"', lambda found: b"[" * int(found[1]) + b"]" * int(found[1]), said)


def _change_one(fields: Any, chance: random.Random) -> str:
    """Change, remove, add, copy or rename something, anywhere in it."""
    owner, key = chance.choice(list(_places(fields)))
    texts = [each for each in ODD if isinstance(each, str)]
    act = chance.choice(
        ("set", "set", "set", "remove", "add", "near", "near", "near", "copy", "rename", "deep")
    )
    match act:
        case "set":
            owner[key] = copy.deepcopy(chance.choice(ODD))
        case "remove":
            del owner[key]
        case "add" if isinstance(owner, list):
            owner.append(chance.choice(ODD))
        case "add":
            owner[chance.choice(texts)] = chance.choice(ODD)
        case "near":
            is_number = type(owner[key]) is int
            owner[key] = owner[key] + chance.choice((-64, -1, 1, 64, 4096)) if is_number else [owner[key]]
        case "copy":
            other, place = chance.choice(list(_places(fields)))
            owner[key] = copy.deepcopy(other[place])
        case "rename" if isinstance(owner, dict):
            owner[chance.choice(texts)] = owner.pop(key)
        case _:
            owner[key] = f"@deep{chance.choice(DEPTHS)}@"
    return f"{act} {key!r:.40}"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each value in another one, as what holds it and its key there."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _damage_one(run: Path, outside: Path, chance: random.Random) -> str:
    file = chance.choice([path for path in sorted(run.rglob("*")) if path.is_file()])
    content = bytearray(file.read_bytes()) if file.stat().st_size < 1 << 24 else bytearray()
    at = chance.randrange(len(content) or 1)
    length = chance.choice((1, 8, 64, 4096))
    act = chance.choice(list(_OF_BYTES) * 2 + list(_OF_FILES) + ["json", "json", "lines", "lines", "texts"])
    if act in _OF_BYTES and content:
        file.write_bytes(_OF_BYTES[act](content, at, length, chance))
    elif act in _OF_FILES:
        _OF_FILES[act](file, run, outside, chance)
    elif act == "json":
        file = chance.choice([path for path in sorted(run.rglob("*.json")) if path.is_file()] or [file])
        _change_json(file, chance)
    elif act == "lines" and (run / "metrics.jsonl").is_file():
        file = run / "metrics.jsonl"
        lines = file.read_bytes().split(b"\n")
        lines.insert(chance.randrange(len(lines)), chance.choice(LINES))
        file.write_bytes(b"\n".join(lines))
    else:
        file.write_bytes(chance.choice(TEXTS) + bytes(content[at:]))
    return f"{act} {file.relative_to(run)} at {at}"


def _change_json(file: Path, chance: random.Random) -> None:
    try:
        fields = json.loads(file.read_bytes())
        _change_one(fields, chance)
    except (ValueError, TypeError, IndexError):  # damaged already, or nothing in it
        fields = f"@deep{chance.choice(DEPTHS)}@"
    file.write_bytes(_json(fields))


def _flip(content: bytearray, at: int, length: int, chance: random.Random) -> bytes:
    content[at] ^= 1 << chance.randrange(8)
    return bytes(content)


def _garble(content: bytearray, at: int, length: int, chance: random.Random) -> bytes:
    return bytes(content[:at]) + chance.randbytes(length) + bytes(content[at + length :])


def _replace(file: Path, make: Any) -> None:
    file.unlink()
    make()


def _swap(file: Path, run: Path, outside: Path, chance: random.Random) -> None:
    other = chance.choice([path for path in sorted(run.rglob("*")) if path.is_file()])
    one, two = file.read_bytes(), other.read_bytes()
    file.write_bytes(two)
    other.write_bytes(one)


_OF_BYTES = {
    "flip": _flip,
    "garble": _garble,
    "cut": lambda content, at, length, chance: bytes(content[:at]),
    "zeros": lambda content, at, length, chance: (
        bytes(content[:at]) + bytes(length) + bytes(content[at + length :])
    ),
    "insert": lambda content, at, length, chance: (
        bytes(content[:at]) + chance.randbytes(length) + bytes(content[at:])
    ),
    "double": lambda content, at, length, chance: bytes(content[: at + length]) + bytes(content[at:]),
}
_OF_FILES = {
    "empty": lambda file, run, outside, chance: file.write_bytes(b""),
    "remove": lambda file, run, outside, chance: file.unlink(),
    "folder": lambda file, run, outside, chance: _replace(file, file.mkdir),
    "link": lambda file, run, outside, chance: _replace(file, lambda: file.symlink_to(outside / "precious")),
    "dead link": lambda file, run, outside, chance: _replace(file, lambda: file.symlink_to(outside / "new")),
    "device": lambda file, run, outside, chance: _replace(file, lambda: file.symlink_to("/dev/zero")),
    "pipe": lambda file, run, outside, chance: _replace(file, lambda: os.mkfifo(file)),
    "remove folder": lambda file, run, outside, chance: (
        shutil.rmtree(file.parent) if file.parent != run else None
    ),
    "swap": _swap,
    "rename": lambda file, run, outside, chance: file.rename(file.with_name("step_00000003")),
}
