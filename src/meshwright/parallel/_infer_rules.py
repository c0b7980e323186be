"""A rule for any model, with tensor and expert parallelism from its structure, and FSDP by size."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, tree
from meshwright.errors import LayoutError
from meshwright.parallel._axes import EXPERT, FSDP, PIPELINE, TENSOR, num_stages
from meshwright.parallel._rules import state_axes
from meshwright.parallel._shapes import shaped_structure
from meshwright.parallel._structure import GATES, STACKS, Dim, Group, Structure, split_groups
from meshwright.parallel._traced import traced_structure

Entries = list[tuple[str, ...]]
"""The mesh axes that split each dimension."""
WIDE = 1024
"""Least width at which a vocabulary's weight is split over its width instead.

A score that is contracted over a split width is summed over devices: 8 bytes are sent. With a whole weight,
each device computes all scores: 6 operations for each feature of the width. At 400 TFLOP/s and 400 GB/s (an
H100) the two take equally long at about this width, and a split weight takes less memory.
"""


@dataclass(frozen=True, eq=False)
class InferredRule:
    """The rule that `infer_rules` makes. `why` gives the reason for each of its choices."""

    structure: Structure
    """The dimensions that belong together, as found in the model."""
    split: frozenset[Group]
    """Groups of dimensions that are split over the tensor axis."""
    min_size: int
    """Arrays with fewer elements are not split over fsdp."""

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        dims = self._dims(name, x)
        if dims is None:
            return None
        entries, _ = self._decide(dims, x, mesh)
        return P(*entries) if any(entries) else None

    def why(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> str:
        """Return the reason for the spec of one array, in a few words."""
        dims = self._dims(name, x)
        return "" if dims is None else self._decide(dims, x, mesh)[1]

    def _dims(self, name: str, x: jax.ShapeDtypeStruct) -> tuple[Dim, ...] | None:
        """Return the dimensions of a parameter, found by its own name or by its name in a `TrainState`."""
        table = self.structure.dims
        dims = table.get(name, table.get(name.removeprefix("params/")))
        return dims if dims is not None and len(dims) == x.ndim else None

    def _decide(self, dims: tuple[Dim, ...], x: jax.ShapeDtypeStruct, mesh: Mesh) -> tuple[Entries, str]:
        entries: Entries = [()] * x.ndim
        reasons = [_stages(entries, dims, x, mesh), self._tensor(entries, dims, x, mesh)]
        reasons.append(_experts(entries, dims, x, mesh))
        reasons.append(_fsdp(entries, dims, x, mesh, self.min_size))
        return entries, "; ".join(filter(None, reasons))

    def _tensor(self, entries: Entries, dims: tuple[Dim, ...], x: jax.ShapeDtypeStruct, mesh: Mesh) -> str:
        """Split the chosen dimension over the tensor axis if the axis divides it, and return the reason."""
        ways = mesh.shape.get(TENSOR, 1)
        if ways == 1:
            return ""
        chosen = [d for d, dim in enumerate(dims) if dim.group in self.split]
        if not chosen:
            return self._why_whole(dims)
        d = chosen[0]
        if dims[d].kind == GATES and mesh.size == ways:
            return "gates, which only save sums over the batch's axes"
        if dims[d].pieces % ways or x.shape[d] % ways:
            return self._split_width(entries, dims, d, x, mesh)
        entries[d] = (TENSOR,)
        return f"{dims[d].pieces} {dims[d].kind}"

    def _split_width(self, entries: Entries, dims: tuple[Dim, ...], d: int, x: Any, mesh: Mesh) -> str:
        """Split the other dimension of a vocabulary's weight over the tensor axis if worthwhile.

        Return the reason.
        """
        ways, pieces, kind = mesh.shape[TENSOR], dims[d].pieces, dims[d].kind
        advice = "" if kind.startswith("heads") else f"; pad them to {-(-pieces // ways) * ways}"
        why = f"{pieces} {kind} do not divide by {ways} ({TENSOR}){advice}"
        if dims[d].group not in self.structure.vocabularies or mesh.shape.get(FSDP, 1) > 1:
            # The axis `fsdp` splits it already.
            return why
        others = ((other, dim) for other, dim in enumerate(dims) if other != d)
        wide = [other for other, dim in others if dim.features >= WIDE and x.shape[other] % ways == 0]
        if not wide:
            return why
        entries[wide[0]] = (TENSOR,)
        return f"{dims[wide[0]].features} {dims[wide[0]].kind}, as {why}"

    def _why_whole(self, dims: tuple[Dim, ...]) -> str:
        """Return the reason why none of `dims` is split over the tensor axis."""
        never = (self.structure.never.get(dim.group, "") for dim in dims)
        kinds = ("" if dim.kind in STACKS or dim.group is not None else dim.kind for dim in dims)
        reasons = ", ".join(dict.fromkeys(filter(None, (*kinds, *never))))
        joined = any(dim.group is not None for dim in dims)
        return reasons or ("joined to what is split" if joined else "")


def infer_rules(
    params: PyTree,
    function: Callable[..., Any] | None = None,
    *arguments: PyTree,
    head_size: int | None = None,
    min_size: int = 2**16,
) -> InferredRule:
    """Return a rule that splits `params` over a mesh with any of the axes pipeline, tensor, expert
    and fsdp.

    With a function, the rule is inferred from its program: which dimensions are heads, hidden features or a
    vocabulary. Without one, it is inferred from shapes and, in attention, from the usual names; dimensions
    that stay ambiguous are not split over the tensor axis. Neither the names of parameters nor the order of
    the tree matter if there is a function. `Layout.explain` shows the reasons.

    Args:
      params: The parameters, or `ShapeDtypeStruct`s of them.
      function: The loss or the model (not its gradient), called as `function(params, *arguments)`. It is
        traced and not run.
      arguments: The other arguments of the function; structs are enough.
      head_size: Number of features of an attention head, if there is no function and shapes do not show it.
      min_size: Arrays with fewer elements are not split over fsdp.

    Raises:
      LayoutError: Both `function` and `head_size` are given.

    Example:
      >>> params = {"up": jnp.ones((256, 1024)), "down": jnp.ones((1024, 256))}
      >>> model = lambda params, x: jax.nn.relu(x @ params["up"]) @ params["down"]
      >>> rule = mw.infer_rules(params, model, jnp.ones((8, 256)))
      >>> layout = mw.Layout(mw.make_mesh("data=2,tensor=4"), (rule,))
      >>> layout.spec("up", params["up"]), layout.spec("down", params["down"])
      (P(None, 'tensor'), P('tensor',))
    """
    if function is None:
        structure = shaped_structure(tree.named_leaves(tree.abstract(params)), head_size)
    elif head_size is None:
        structure = traced_structure(params, function, *arguments)
    else:
        raise LayoutError(
            f"infer_rules: head_size={head_size} and a function are both given; the head size is inferred "
            "from the function.\n  Leave head_size out."
        )
    return InferredRule(structure, split_groups(structure), min_size)


def _experts(entries: Entries, dims: tuple[Dim, ...], x: jax.ShapeDtypeStruct, mesh: Mesh) -> str:
    """Split stacked experts over the expert axis.

    If the last dimension is experts, it is a router's output.
    """
    ways = mesh.shape.get(EXPERT, 1)
    expert_dims = [d for d, dim in enumerate(dims[:-1]) if dim.kind == "experts" and x.shape[d] % ways == 0]
    if ways == 1 or not expert_dims:
        return ""
    entries[expert_dims[0]] = (EXPERT,)
    return f"{x.shape[expert_dims[0]]} experts"


def _stages(entries: Entries, dims: tuple[Dim, ...], x: jax.ShapeDtypeStruct, mesh: Mesh) -> str:
    """Split stacked layers over the pipeline axis."""
    ways = num_stages(mesh.shape)
    if ways == 1 or not dims or dims[0].kind != "layers" or x.shape[0] % ways:
        return ""
    entries[0] = (PIPELINE,)
    return f"{x.shape[0]} layers"


def _fsdp(entries: Entries, dims: tuple[Dim, ...], x: jax.ShapeDtypeStruct, mesh: Mesh, min_size: int) -> str:
    """Split the longest dimension that divides over fsdp; one that is not split yet comes first.

    The axis `sequence` splits it, too, as in the rule `fsdp`. What is outside the layers of a pipeline is
    also split over its axis in the same way, if it divides.
    """
    choices = state_axes(mesh)
    if num_stages(mesh.shape) > 1 and all(dim.kind != "layers" for dim in dims):
        choices = [*((*axes, PIPELINE) for axes in choices or [()]), *choices]
    if not choices or x.size < min_size:
        return ""
    sizes = [x.shape[d] // math.prod(mesh.shape[axis] for axis in entries[d]) for d in range(x.ndim)]
    for axes in choices:
        ways = math.prod(mesh.shape[axis] for axis in axes)
        # A scan reads one layer at a time: if layers were split, each would be fetched whole from one device.
        fit = [d for d in range(x.ndim) if sizes[d] % ways == 0 and dims[d].kind != "layers"]
        if fit:
            d = max(fit, key=lambda d: (not entries[d], sizes[d]))
            entries[d] = (*entries[d], *axes)
            return ", ".join(axes)
    return (
        f"nothing divides by {', '.join(choices[-1])} {math.prod(mesh.shape[axis] for axis in choices[-1])}"
    )
