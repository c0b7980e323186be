"""Times by layer: operations grouped by the named scopes of the model that they come from.

    jit(step)/jvp()/while/body/closed_call/attention/dot_general              forward,  attention
    jit(step)/transpose(jvp(head))/dot_general                                backward, head
    jit(step)/optimizer/mul                                                   neither,  optimizer

A scope is the name of a Flax module, or `jax.named_scope("attention")` in a function.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.observe._profile._xplane import Op, Sources
from meshwright.program._internal import collective_of

NO_SCOPE = "(no scope)"
IN_A_LOOP = "(no scope, in a loop)"
ARGUMENTS = "(arguments of the program)"
COMMAND_BUFFER = "(in a command buffer)"
DEPTH = 2
"""The number of scopes, one inside the other, that are distinguished."""

# A CUDA graph as a whole, as CUPTI and as XLA name it. The kernels in it have no names of operations.
_COMMAND_BUFFER = re.compile(r"CudaGraphExec:|(?:wrapped_|hip_)?command_?buffer", re.IGNORECASE)
# A function of JAX or of the user, not a scope.
_FUNCTION = re.compile(r"p?jit\([^()]*\)")
_TRANSFORMATION = re.compile(r"\b(?:jvp|transpose|vmap|checkpoint|remat)\(|\)")
_STRUCTURE = re.compile(
    r"while|body|cond|scan|closed_call|core_call|eval_jaxpr|checkpoint|rematted_computation|remat\d?|pjit|shard_map"
    # `->` is in the name that einsum gives.
    r"|custom_[jv][a-z_]*|branch_\d+_fun|.*->.*|"
)


@dataclass(frozen=True)
class ScopeTimes:
    """The time of all operations of a scope, over all devices."""

    scope: str
    """Scopes of the model, outer ones first: `layers/attention`. Names that differ in a number at the end
    count together, as `layers_*`. In parentheses if the operations have no scope."""
    forward_seconds: float
    """Seconds of the forward pass."""
    backward_seconds: float
    """Seconds of the backward pass, with recomputation."""
    other_seconds: float
    """Seconds of neither, such as those of the optimizer."""
    collective_seconds: float
    """Seconds of collectives among all these."""

    @property
    def seconds(self) -> float:
        """All seconds."""
        return self.forward_seconds + self.backward_seconds + self.other_seconds


class Origin(NamedTuple):
    """The place of an operation in a model."""

    scope: str
    direction: str
    """`forward`, `backward`, or `other`."""


def is_command_buffer(name: str) -> bool:
    """Return whether an event of a device is a whole CUDA graph."""
    return _COMMAND_BUFFER.match(name) is not None


def origin_of(source: str, depth: int = DEPTH) -> Origin:
    """Return the scope and the direction of an operation."""
    if source and "/" not in source:
        # Named by an argument of the program: `state.params['head']`.
        return Origin(ARGUMENTS, "other")
    origins = [_origin_of_one(part, depth) for part in _merged(source)]
    return next((origin for origin in origins if not origin.scope.startswith("(")), origins[0])


def _merged(source: str) -> list[str]:
    """Return the sources of an operation that XLA made of several: `jit(f)/(a/mul:b/mul)`."""
    shared, _, several = source.partition(";")[0].partition("/(")
    return [f"{shared}/{part}" for part in several.removesuffix(")").split(":")] if several else [shared]


def _origin_of_one(source: str, depth: int) -> Origin:
    direction = "backward" if "transpose(" in source else "forward" if "jvp(" in source else "other"
    path = _TRANSFORMATION.sub("", _FUNCTION.sub("", source)).split("/")
    scopes = [
        re.sub(r"(?:^|(?<=_))\d+$", "*", component)
        for component in path[:-1]
        if not _STRUCTURE.fullmatch(component)
    ]
    nowhere = IN_A_LOOP if "while" in path else NO_SCOPE
    return Origin("/".join(scopes[:depth]) or nowhere, direction)


def scope_times(ops: Iterable[Op], sources: Sources, depth: int = DEPTH) -> list[ScopeTimes]:
    """Return the times of scopes, the longest first."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for op in ops:
        origin = _op_origin(op, sources, depth)
        seconds[origin.scope][origin.direction] += op.seconds
        if collective_of(op.name):
            seconds[origin.scope]["collective"] += op.seconds
    kinds = ("forward", "backward", "other", "collective")
    times = [ScopeTimes(scope, *(parts[kind] for kind in kinds)) for scope, parts in seconds.items()]
    return sorted(times, key=lambda scope: -scope.seconds)


def _op_origin(op: Op, sources: Sources, depth: int) -> Origin:
    if is_command_buffer(op.name):
        return Origin(COMMAND_BUFFER, "other")
    return origin_of(op.source or sources.get(op.module, {}).get(op.name, ""), depth)
