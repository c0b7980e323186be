"""The text of a program, with its constants and without paths, so that all processes can compare it.

JAX's lowered text is almost this. But it contains kernels of Pallas in a binary form, with the paths of their
sources: the jaxpr is used for them. And if JAX passes constants as arguments
(`jax_use_simplified_jaxpr_constants`), digests of the constants are added.
"""

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import crc32, tree
from meshwright.processes._differences import lines_of

_BINARY = ("ML\\EFR", "TUzvUg")
"""The first bytes of MLIR's bytecode, as bytes and in base64."""
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_SET = re.compile(r"\{([^{};=]*)\}")
"""A set, whose order differs between processes."""
_LOCAL = re.compile(r" at \S+:\d+|0x[0-9a-fA-F]+")


def program_text(traced: jax.stages.Traced, lowered: jax.stages.Lowered) -> str:
    """Return the text of a program."""
    text = lowered.as_text()
    added: list[str] = []
    if any(mark in text for mark in _BINARY):
        text = "\n".join(_without_binary(line) for line in text.split("\n"))
        added.append(_LOCAL.sub("", str(traced.jaxpr)))
    if getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        added += [digest_of(x) for x in _constants(*traced.jaxpr.eqns)]
    return "\n".join([text, *added])


def text_of_values(traced: jax.stages.Traced) -> dict[str, str]:
    """Return the text of a program that makes a tree of arrays: the constants in each array, and its
    lines.
    """
    jaxpr, names = traced.jaxpr, tree.leaf_names(traced.out_info)
    within = {var: {digest_of(x)} for var, x in zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)}
    for eqn in jaxpr.eqns:
        inputs = (within.get(x, set()) for x in eqn.invars if not hasattr(x, "val"))
        held = {digest_of(x) for x in _constants(eqn)}.union(*inputs)
        within |= dict.fromkeys(eqn.outvars, held)
    outputs = [x if not hasattr(x, "val") else None for x in jaxpr.jaxpr.outvars]
    constants = {
        name: "constants " + ", ".join(sorted(within[x]))
        for name, x in zip(names, outputs, strict=True)
        if within.get(x)
    }
    text = _SET.sub(lambda found: str(sorted(found[1].split(", "))), _LOCAL.sub("", str(jaxpr)))
    return {**constants, **lines_of(text)}


def digest_of(x: Any) -> str:
    """Return the dtype, the shape and the CRC-32 of an array, of all its bytes."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    return f"{x.dtype}{list(x.shape)} of CRC-32 {crc32(data):08x}"


def _without_binary(line: str) -> str:
    return _QUOTED.sub('"…"', line) if any(mark in line for mark in _BINARY) else line


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
