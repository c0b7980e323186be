"""The texts that processes compare, of programs or settings, and the message that says how they differ."""

import collections
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import crc32, tree
from meshwright.errors import ranges

Lines = Mapping[str, str]
"""The text of a process: settings by dotted path, or the lines of a program by `line 1`, `line 2`, …."""
Groups = Mapping[int, Sequence[int]]
"""The processes whose texts are equal, by the first process of each group."""

_LONG = 2000
"""The length of the longest line that is sent in full. Of a longer line, such as a table of numbers, the
middle is sent as a digest."""
_NUM_SHOWN = 160
"""The most characters of a value in the message."""
_MOST_NAMES = 4
_NOTHING = "nothing"
_LINE = "line "
_NUMBERED = re.compile(r"%\w+(?:[:#]\d+)?|@\w+?_\d+\b")
"""Names in a program that have a number from the order of its lines."""
_ORDER = (
    "\n  The lines are the same in another order. Code may iterate over a `set` of strings, whose order\n"
    "  differs between processes: iterate over `sorted(...)` of it."
)


def lines_of(text: str) -> Lines:
    """Return the lines of a text, shortened, by `line 1`, `line 2` and so on."""
    return {f"{_LINE}{i}": shortened(line.strip()) for i, line in enumerate(text.splitlines(), 1)}


def shortened(line: str) -> str:
    """Return a line or, if it is long, its beginning, a digest and its end."""
    if len(line) <= _LONG:
        return line
    digest = hashlib.sha256(line.encode()).hexdigest()[:12]
    return f"{line[:_NUM_SHOWN]}… (sha256 {digest}) …{line[-_NUM_SHOWN:]}"


def describe_difference(
    about: str, lines: Mapping[int, Lines], groups: Groups, *, orders_differ: bool
) -> str:
    """Return a message with the first line or setting that differs, and its value on each process."""
    names = dict.fromkeys(itertools.chain.from_iterable(lines.values()))
    differing = [name for name in names if len({text.get(name) for text in lines.values()}) > 1]
    if differing:
        first = _by_process(
            {number: text.get(differing[0], _NOTHING) for number, text in lines.items()}, groups
        )
        difference = f"{differing[0]}: {first}"
    elif len({tuple(text) for text in lines.values()}) > 1:
        orders = {number: ", ".join(text) for number, text in lines.items()}
        difference = f"the order of the settings: {_by_process(orders, groups)}"
    else:
        difference = "white space only"
    more = [name for name in differing[1:] if not name.startswith(_LINE)]  # one new line moves all others
    listed = ", ".join(more[:_MOST_NAMES]) + (", …" if more[_MOST_NAMES:] else "")
    also = f"\n  and {len(more)} more: {listed}" if more else ""
    reordered = orders_differ and len({_unordered(text) for text in lines.values()}) == 1
    return (
        f"the processes of this run differ in {about}:\n  {difference}{also}{_ORDER if reordered else ''}\n"
        "  All processes must run the same program: start them with the same code, settings and data."
    )


def _by_process(values: Mapping[int, str], groups: Groups) -> str:
    """Return the values with their processes: `0.01 on process 0, 0.02 on 1`."""
    columns = zip(*values.values(), strict=False)
    start = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    processes: dict[str, list[int]] = {}
    for number, value in values.items():
        processes.setdefault(_around(value, start), []).extend(groups[number])
    if all(len(numbers) == 1 for numbers in processes.values()):
        return ", ".join(
            f"{value} on {'' if i else 'process '}{numbers[0]}"
            for i, (value, numbers) in enumerate(processes.items())
        )
    return "; ".join(
        f"{value} on {'process' if len(numbers) == 1 else 'processes'} {ranges(numbers)}"
        for value, numbers in processes.items()
    )


def _around(value: str, index: int) -> str:
    """Return the part of a value around an index in it, as much as the message shows."""
    if len(value) <= _NUM_SHOWN:
        return value
    start = max(0, min(index - _NUM_SHOWN // 3, len(value) - _NUM_SHOWN))
    excerpt = value[start : start + _NUM_SHOWN]
    return f"{'…' if start else ''}{excerpt}{'…' if start + _NUM_SHOWN < len(value) else ''}"


def _unordered(lines: Lines) -> frozenset[tuple[str, int]]:
    """Return the lines as a set with counts, without the numbers that come from their order."""
    items = ((re.sub(r"^line \d+$|\.\d+(?=\.|$)", "", name), text) for name, text in lines.items())
    return frozenset(
        collections.Counter(f"{path}: {_NUMBERED.sub('%', text)}" for path, text in items).items()
    )


_BINARY = ("ML\\EFR", "TUzvUg")
"""The first bytes of MLIR's bytecode, as bytes and in base64."""
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_SET = re.compile(r"\{([^{};=]*)\}")
"""A set, whose order differs between processes."""
_LOCAL = re.compile(r" at \S+:\d+|0x[0-9a-fA-F]+")


def program_text(traced: jax.stages.Traced, lowered: jax.stages.Lowered) -> str:
    """Return the text of a program, with its constants and without paths of this machine."""
    text = lowered.as_text()
    added: list[str] = []
    # Kernels of Pallas are in a binary form, with the paths of their sources: the jaxpr is used for them.
    if any(mark in text for mark in _BINARY):
        lines = text.split("\n")
        text = "\n".join(_QUOTED.sub('"…"', x) if any(mark in x for mark in _BINARY) else x for x in lines)
        added.append(_LOCAL.sub("", str(traced.jaxpr)))
    # With this setting, JAX passes constants as arguments, and the text does not contain them.
    if getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        added += [digest_of(x) for x in _constants(*traced.jaxpr.eqns)]
    return "\n".join([text, *added])


def text_of_values(traced: jax.stages.Traced) -> dict[str, str]:
    """Return the text of a program that makes a tree of arrays: the constants in each, and the lines."""
    jaxpr, names = traced.jaxpr, tree.leaf_names(traced.out_info)
    within = {var: {digest_of(x)} for var, x in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)}
    for eqn in jaxpr.eqns:
        inputs = (within.get(x, set()) for x in eqn.invars if not hasattr(x, "val"))
        digests = {digest_of(x) for x in _constants(eqn)}.union(*inputs)
        within |= dict.fromkeys(eqn.outvars, digests)
    outputs = [x if not hasattr(x, "val") else None for x in jaxpr.jaxpr.outvars]
    constants = {
        name: "constants " + ", ".join(sorted(within[x]))
        for name, x in zip(names, outputs, strict=True)
        if within.get(x)
    }
    text = _SET.sub(lambda match: str(sorted(match[1].split(", "))), _LOCAL.sub("", str(jaxpr)))
    return {**constants, **lines_of(text)}


def digest_of(x: Any) -> str:
    """Return the dtype, the shape and the CRC-32 of an array, of all its bytes."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return f"{x.dtype}{list(x.shape)} of CRC-32 {crc32(data):08x}"


def _constants(*equations: Any) -> Iterator[np.ndarray]:
    """Yield the arrays among the operands of equations, and among the constants of jaxprs inside them."""
    for eqn in equations:
        yield from (x.val for x in eqn.invars if np.ndim(getattr(x, "val", 0)))
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from getattr(value, "consts", ())
                yield from _constants(*getattr(value, "jaxpr", value).eqns)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")
