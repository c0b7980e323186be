"""How many bytes a compiled program exchanges between devices, read from its HLO text.

    %all-gather.3 = f32[8,128]{1,0} all-gather(%p), replica_groups=[4,2]<=[8], dimensions={1}

Counted is what one device handles of each collective: the larger of its operand and its result. The
body of a loop counts as often as it runs.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BITS = {"pred": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "s4": 4, "u4": 4}

HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (?P<type>.+?) (?P<op>[a-z][\w-]*)\((?P<rest>.*)$")
ARRAY = re.compile(r"([a-z]+[0-9]*)(?:e\w+)?\[([0-9,]*)\]")
CALLED = re.compile(r"(?:to_apply|body|calls|true_computation|false_computation)=%?([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def collective_bytes(hlo: str) -> Counter[str]:
    """Return the bytes per device of each kind of collective.

    Raises:
      ValueError: a loop with collectives in it runs an unknown number of times.
    """
    computations = dict(_computations(hlo))
    entry = next(name for name, (is_entry, _) in computations.items() if is_entry)

    def total(name: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for type_, op, rest in computations[name][1]:
            kind = op.removesuffix("-done")  # of a pair of start and done, the second has the plain result
            if kind in KINDS and _group_size(rest) > 1:
                found[kind] += _bytes(type_) * (_group_size(rest) if kind == "reduce-scatter" else 1)
            for called in _called(op, rest):
                inside = total(called)
                times = _trips(rest) if op == "while" and inside else 1
                found.update({kind: times * size for kind, size in inside.items()})
        return found

    return total(entry)


def _computations(hlo: str) -> Iterator[tuple[str, tuple[bool, list[tuple[str, str, str]]]]]:
    instructions: list[tuple[str, str, str]] = []
    for line in hlo.splitlines():
        if header := HEADER.match(line):
            instructions = []
            yield header[2], (header[1] is not None, instructions)
        elif instruction := INSTRUCTION.match(line):
            instructions.append((instruction["type"], instruction["op"], instruction["rest"]))


def _called(op: str, rest: str) -> list[str]:
    if op in KINDS or op in ("reduce", "reduce-window", "scatter", "sort", "select-and-scatter", "map"):
        return []  # they apply scalar functions
    branches = [name.strip(" %") for found in BRANCHES.findall(rest) for name in found.split(",")]
    return CALLED.findall(rest) + branches


def _trips(rest: str) -> int:
    known = TRIPS.search(rest)
    if known is None:
        raise ValueError(f"a loop exchanges data, and its number of turns is not known: while({rest[:200]}")
    return int(known[1])


def _group_size(rest: str) -> int:
    """Return how many devices take part: of a permutation two, of the other collectives as it is written.

    `{{0,1},{2,3}}`, `[4,2]<=[8]`, or `mesh['a'=4,'b'=2], … {'b'}`.
    """
    if "source_target_pairs" in rest:
        return 2
    if listed := re.search(r"replica_groups=\{\{([0-9,]*)\}", rest):
        return listed[1].count(",") + 1
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
        return int(counted[1])
    if named := re.search(r"replica_groups=mesh\[([^]]*)\].*?\{([^}]*)\}", rest):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    raise ValueError(f"cannot read the devices of a collective: {rest[:300]}")


def _bytes(type_: str) -> int:
    """Of `f32[8,128]{1,0}`, or of a tuple of such."""
    return sum(
        math.prod(int(size) for size in shape.split(",") if size) * _bits(dtype) // 8
        for dtype, shape in ARRAY.findall(type_)
    )


def _bits(dtype: str) -> int:
    return BITS.get(dtype) or int(re.sub(r"\D", "", dtype))
