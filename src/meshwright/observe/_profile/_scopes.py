"""Times by layer: operations grouped by the named scopes of the model that they come from.

    jit(step)/jvp()/while/body/closed_call/attention/dot_general              forward,  attention
    jit(step)/transpose(jvp(head))/dot_general                                backward, head
    jit(step)/optimizer/mul                                                   neither,  optimizer

A scope is the name of a Flax module, or `jax.named_scope("attention")` in a function.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.observe._profile._programs import Sources
from meshwright.observe._profile._xplane import Op
from meshwright.program._internal import collective_of

NO_SCOPE = "(no scope)"
IN_A_LOOP = "(no scope, in a loop)"
ARGUMENTS = "(arguments of the program)"
COMMAND_BUFFER = "(in a command buffer)"
DEPTH = 2
"""The number of scopes, one inside the other, that are told apart."""

# A CUDA graph as a whole, as CUPTI and as XLA name it. The kernels in it have no names of operations.
_COMMAND_BUFFER = re.compile(r"CudaGraphExec:|(?:wrapped_|hip_)?command_?buffer", re.IGNORECASE)
_FUNCTION = re.compile(r"p?jit\([^()]*\)")  # a function of JAX or of the user, not a scope
_TRANSFORMATION = re.compile(r"\b(?:jvp|transpose|vmap|checkpoint|remat)\(|\)")
_STRUCTURE = re.compile(
    r"while|body|cond|scan|closed_call|core_call|eval_jaxpr|checkpoint|rematted_computation|remat\d?|pjit|shard_map"
    r"|custom_[jv][a-z_]*|branch_\d+_fun|.*->.*|"  # `->` is in the name that einsum gives
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
    """Seconds of the backward pass, with what it computes again."""
    other_seconds: float
    """Seconds of neither, such as those of the optimizer."""
    collective_seconds: float
    """Seconds of collectives among all these."""

    @property
    def seconds(self) -> float:
        """All seconds."""
        return self.forward_seconds + self.backward_seconds + self.other_seconds


class Place(NamedTuple):
    """The place of an operation in a model."""

    scope: str
    direction: str
    """`forward`, `backward`, or `other`."""


def is_command_buffer(name: str) -> bool:
    """Return whether an event of a device is a whole CUDA graph."""
    return _COMMAND_BUFFER.match(name) is not None


def place_of(source: str, depth: int = DEPTH) -> Place:
    """Return the scope and the direction of an operation."""
    if source and "/" not in source:
        return Place(ARGUMENTS, "other")  # named by an argument of the program: `state.params['head']`
    places = [_place_of_one(each, depth) for each in _merged(source)]
    return next((place for place in places if not place.scope.startswith("(")), places[0])


def _merged(source: str) -> list[str]:
    """Return the sources of an operation that XLA made of several: `jit(f)/(a/mul:b/mul)`."""
    before, _, several = source.partition(";")[0].partition("/(")
    return [f"{before}/{each}" for each in several.removesuffix(")").split(":")] if several else [before]


def _place_of_one(source: str, depth: int) -> Place:
    direction = "backward" if "transpose(" in source else "forward" if "jvp(" in source else "other"
    path = _TRANSFORMATION.sub("", _FUNCTION.sub("", source)).split("/")
    scopes = [re.sub(r"(?:^|(?<=_))\d+$", "*", each) for each in path[:-1] if not _STRUCTURE.fullmatch(each)]
    nowhere = IN_A_LOOP if "while" in path else NO_SCOPE
    return Place("/".join(scopes[:depth]) or nowhere, direction)


def scope_times(ops: Iterable[Op], sources: Sources, depth: int = DEPTH) -> list[ScopeTimes]:
    """Return the times of scopes, the longest first."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for op in ops:
        place = _place(op, sources, depth)
        seconds[place.scope][place.direction] += op.seconds
        if collective_of(op.name):
            seconds[place.scope]["collective"] += op.seconds
    return sorted((_times(scope, found) for scope, found in seconds.items()), key=lambda x: -x.seconds)


def _place(op: Op, sources: Sources, depth: int) -> Place:
    if is_command_buffer(op.name):
        return Place(COMMAND_BUFFER, "other")
    return place_of(op.source or sources.get(op.module, {}).get(op.name, ""), depth)


def _times(scope: str, found: Mapping[str, float]) -> ScopeTimes:
    kinds = ("forward", "backward", "other", "collective")
    return ScopeTimes(scope, *(found.get(kind, 0.0) for kind in kinds))
