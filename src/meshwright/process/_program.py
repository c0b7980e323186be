"""The text of a program, with its constants and without paths, so that all processes can compare it.

JAX's lowered text is almost this. But it contains kernels of Pallas in a binary form, with the paths of their
sources: the jaxpr is used for them. And if JAX passes constants as arguments
(`jax_use_simplified_jaxpr_constants`), digests of the constants are added.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

_BINARY = ("ML\\EFR", "TUzvUg")
"""The first bytes of MLIR's bytecode, as bytes and in base64."""
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_LOCAL = re.compile(r" at \S+:\d+|0x[0-9a-fA-F]+")


def program_text(traced: jax.stages.Traced, lowered: jax.stages.Lowered) -> str:
    """Return the text of a program.

    Args:
      traced: The program as it was traced.
      lowered: The same program, lowered.
    """
    text = lowered.as_text()
    added: list[str] = []
    if any(mark in text for mark in _BINARY):
        text = "\n".join(_without_binary(line) for line in text.split("\n"))
        added.append(_LOCAL.sub("", str(traced.jaxpr)))
    if getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        added += [_digest(x) for x in _constants(traced.jaxpr)]
    return "\n".join([text, *added])


def _without_binary(line: str) -> str:
    return _QUOTED.sub('"…"', line) if any(mark in line for mark in _BINARY) else line


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all equations of a jaxpr, including those of jaxprs inside it."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from _equations(value)


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def _constants(jaxpr: Any) -> Iterator[np.ndarray]:
    literals = (x.val for eqn in _equations(jaxpr) for x in eqn.invars if hasattr(x, "val"))
    return (np.asarray(value) for value in literals if np.ndim(value))


def _digest(x: np.ndarray) -> str:
    return f"constant {x.dtype}{list(x.shape)} {hashlib.sha256(x.tobytes()).hexdigest()}"
