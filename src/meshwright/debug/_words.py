"""The operation that made a value that is not finite, in words: what it did, where, in which layer."""

import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import meshwright
from meshwright.debug._origin import Input, Origin
from meshwright.program._internal import jaxprs

_OURS = str(Path(meshwright.__file__).parent)
_MODELS = tuple(f"{_OURS}/{folder}/" for folder in ("lm/_models", "cli/demo"))
"""Folders whose lines are those of a model."""
_LIBRARY = sysconfig.get_paths()["stdlib"]
_STEP = f"{_OURS}/training/_step.py"

_ACTS = {
    "log": "the logarithm of {0}",
    "log1p": "the logarithm of 1 + {0}",
    "sqrt": "the square root of {0}",
    "rsqrt": "1 / the square root of {0}",
    "div": "{0} / {1}",
    "sub": "{0} - {1}",
    "add": "{0} + {1}",
    "add_any": "{0} + {1}",
    "mul": "{0} × {1}",
    "exp": "e to the power {0}",
    "exp2": "2 to the power {0}",
    "pow": "{0} to the power {1}",
    "square": "the square of {0}",
    "integer_pow": "{0} to the power {power}",
    "rem": "the remainder of {0} / {1}",
    "acos": "the arc cosine of {0}",
    "asin": "the arc sine of {0}",
    "atanh": "the inverse hyperbolic tangent of {0}",
    "dot_general": "a product of matrices with values {0} and {1}",
    "reduce_sum": "the sum of values {0}",
    "convert_element_type": "{0} as {dtype}, whose largest number is {largest}",
}
_TRANSFORMED = re.compile(r"\b(?:jvp|transpose|vmap|checkpoint|remat)\(|\)")
_STRUCTURE = re.compile(
    r"while|body|cond|scan|closed_call|checkpoint|rematted_computation|remat\d?|p?jit\(.*|custom_[jv][a-z_]*|"
)


def act_of(source: Origin) -> str:
    """Return an operation in words, such as `the logarithm of -1`."""
    name, elements = source.eqn.primitive.name, source.elements
    values = [values_of(x) for x in elements]
    more: dict[str, Any] = {"power": jaxprs.exponent_of(source.eqn)}
    dtype = getattr(source.eqn.outvars[source.out].aval, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jnp.floating):
        more |= {"dtype": dtype.name, "largest": f"{float(jnp.finfo(dtype).max):.4g}"}
    words = _ACTS.get(name)
    if words is None or ("{1}" in words and len(values) < 2) or not values:
        words = f"{name} of {' and '.join(values) or 'its operands'}"
    return f"{words.format(*values, **more)} ({_dtypes(source)}) is {_number(source.value)}"


def input_text(source: Input) -> str:
    """Return the place of a value that no operation made, in words."""
    if source.number is None:
        return f"{_number(source.value)} is a constant in the program"
    return f"{source.name or f'input {source.number}'} has {_number(source.value)} at {list(source.index)}"


def lines_of(eqn: Any) -> tuple[str, str]:
    """Return the user's line of source of an equation, and the line of a library that it called, if any.

    Without a line of the user, the first is that of the library.
    """
    traceback = eqn.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    traced = []
    for frame in frames:
        if frame.file_name == _STEP and frame.function_name.endswith("trace"):
            # The frames from here on are the caller of the step, such as the user's script.
            break
        traced.append(frame)
    frames = [frame for frame in traced if not _is_jax(frame.file_name)]
    own = [frame for frame in frames if _is_users(frame.file_name)]
    first, called = next(iter(frames), None), next(iter(own), None)
    if called is not None and first is not called and first is not None:
        return _frame_text(called), _frame_text(first)
    return ("" if first is None else _frame_text(first)), ""


def direction_of(source: Origin, *, loss_is_bad: bool) -> str:
    """Return the part of the step that an operation is in: forward, gradient or update."""
    stack = "/".join(_stacks(source))
    if "transpose(" in stack:
        return "gradient"
    if "optimizer" in _scopes(stack):
        return "update"
    return "forward" if loss_is_bad else "gradient"


def layer_of(source: Origin) -> str:
    """Return the scopes of the model that an operation is in, and the iterations of loops."""
    return "/".join(_scopes("/".join(_stacks(source))))


def turns_of(source: Origin) -> list[str]:
    """Return the loops around an operation, in words, the outermost first."""
    return [
        f"iteration {loop.turn} of a {loop.eqn.primitive.name}"
        + (f" of {jaxprs.num_turns(loop.eqn)}" if jaxprs.is_scan(loop.eqn) else "")
        for loop in source.around
        if loop.turn is not None
    ]


def _stacks(source: Origin) -> list[str]:
    eqns = [*(loop.eqn for loop in source.around), source.eqn]
    return [str(eqn.source_info.name_stack) for eqn in eqns]


def _scopes(stack: str) -> list[str]:
    return [scope for scope in _TRANSFORMED.sub("", stack).split("/") if not _STRUCTURE.fullmatch(scope)]


def values_of(x: np.ndarray) -> str:
    """Return a value, or the range of several."""
    # NumPy sees bfloat16 and other dtypes of ml_dtypes as raw bytes.
    if x.dtype.kind == "V":
        x = x.astype(np.float32)
    if x.dtype.kind not in "fciub":
        return "no numbers"
    if x.size == 1:
        return _number(x.reshape(())[()])
    kinds = [name for name, is_there in _kinds(x) if is_there]
    finite = x[np.isfinite(x)]
    # Complex numbers have no order, and that of truth values says nothing.
    if finite.dtype.kind in "cb":
        return " and ".join(kinds or (["finite"] if finite.dtype.kind == "c" else _truths(finite)))
    span = [f"from {_number(finite.min())} to {_number(finite.max())}"] if finite.size else []
    return " and ".join([*span, *kinds])


def _truths(x: np.ndarray) -> list[str]:
    return [str(bool(value)) for value in np.unique(x)]


def _kinds(x: np.ndarray) -> list[tuple[str, bool]]:
    if x.dtype.kind not in "fc":
        return []
    return [("NaN", bool(np.isnan(x).any())), ("infinity", bool(np.isinf(x).any()))]


def _number(x: Any) -> str:
    return "NaN" if np.isnan(x) else f"{x:.6g}"


def _dtypes(source: Origin) -> str:
    atoms = (*source.eqn.invars, source.eqn.outvars[source.out])
    dtypes = [getattr(atom.aval, "dtype", None) for atom in atoms]
    return " → ".join(
        dict.fromkeys(str(dtype) for dtype in dtypes if dtype is not None and dtype.kind != "b")
    )


def _is_jax(path: str) -> bool:
    return any(f"/site-packages/{name}/" in path for name in ("jax", "jaxlib"))


def _is_users(path: str) -> bool:
    if path.startswith(_MODELS):
        return True
    return not ("/site-packages/" in path or path.startswith((_OURS, _LIBRARY, "<frozen")))


def _frame_text(frame: Any) -> str:
    path = frame.file_name
    for start in (f"{Path.cwd()}/", f"{_OURS.removesuffix('meshwright')}"):
        path = path.removeprefix(start)
    path = path.rpartition("/site-packages/")[2]
    return f"{path}:{frame.line_num} in {frame.function_name.rpartition('.')[2]}"


def chain_of(source: Origin | Input | None) -> Sequence[Origin | Input]:
    """Return a source and the sources of the infinite values that it was made of, the first made first.

    A constant, such as the infinity of a mask, is on purpose, and only included if it is alone.
    """
    chain: list[Origin | Input] = []
    while source is not None:
        chain.append(source)
        source = source.because if isinstance(source, Origin) else None
    is_on_purpose = len(chain) > 1 and isinstance(chain[-1], Input) and chain[-1].number is None
    return chain[-2::-1] if is_on_purpose else chain[::-1]
