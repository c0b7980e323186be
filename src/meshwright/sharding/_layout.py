"""Where arrays live: a mesh, the rules that split parameters over it, and how batches are split.

Specs are made canonical here and nowhere else. To `jit`'s cache `P("a", None)` is not `P("a")`:
a state that enters as one and leaves as the other would compile twice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright import tree
from meshwright.docstrings import documented
from meshwright.errors import LayoutError, listed, nearest
from meshwright.patterns import Table
from meshwright.sharding._explain import explain, left_whole
from meshwright.sharding._rules import Reasoned, Rule, check_rules, fsdp, tables_of
from meshwright.shown import mesh_text
from meshwright.tree import PyTree

AXES = ("pipeline", "data", "fsdp", "expert", "sequence", "tensor")
"""The standard mesh axes. A rule may name one that a mesh lacks: it splits nothing there, so that the
same rules serve every mesh. Any other name that the mesh lacks is a mistake."""

BATCH_AXES = ("data", "fsdp")
"""The mesh axes that split a batch, those of them that a mesh has."""


def shard_batch_dim(x: jax.Array) -> jax.Array:
    """Return activations [examples, ...] with the examples kept split over the mesh, and all else whole.

    For models that are to run with fsdp: where activations begin, say the rows of an embedding, and where a
    layer that is scanned over returns them. Left to itself, XLA may split the features as the weights that
    made them are. Then each device holds the whole batch, and activations are added up over all devices where
    a layer's weights could be gathered: many times the bytes, as `meshwright plan` shows.

    The mesh is that of the step around it. Without one, or where the examples do not divide, nothing is done.
    """
    sizes = jax.sharding.get_abstract_mesh().shape
    axes = tuple(axis for axis in BATCH_AXES if axis in sizes)
    if not axes or x.shape[0] % math.prod(sizes[axis] for axis in axes):
        return x
    return jax.lax.with_sharding_constraint(x, canonical(P(axes)))


def embedding_lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Return the rows [examples, ..., features] of a table that `ids` [examples, ...] name, split by example.

    The table is made whole over what splits its features first, as a layer's weights are. Left to itself, XLA
    looks rows up where the table is, and moves the activations.
    """
    if jax.sharding.get_abstract_mesh().shape:
        whole = P(P.UNCONSTRAINED, *(None,) * (table.ndim - 1))
        table = jax.lax.with_sharding_constraint(table, whole)
    return shard_batch_dim(table[ids])


@documented
@dataclass(frozen=True)
class Layout:
    """A mesh and the rules for what is placed on it. The first rule that answers stands."""

    mesh: Mesh
    """The devices, along named axes: what `mw.make_mesh` returns."""
    rules: tuple[Rule, ...] = (fsdp(),)
    """How arrays are split: functions of name, array and mesh. What none answers for is replicated."""
    batch_axis_names: tuple[str, ...] | None = None
    """Mesh axes that split a batch's first dimension; None means those of `BATCH_AXES` that exist."""

    def __post_init__(self) -> None:
        unknown = [axis for axis in self.batch_axis_names or () if axis not in self.mesh.shape]
        if unknown:
            raise LayoutError(f"batch axes {unknown} are not in the mesh, which has {dict(self.mesh.shape)}.")

    def __repr__(self) -> str:
        rules = listed(getattr(rule, "__name__", type(rule).__name__.lower()) for rule in self.rules)
        axes = ", ".join(axes_of(self.batch_sharding.spec[0])) if self.batch_sharding.spec else "no axis"
        return f"Layout(mesh {mesh_text(self.mesh.shape)}, rules: {rules or 'none'}, batches over {axes})"

    @property
    def batch_sharding(self) -> NamedSharding:
        """How each leaf of a batch is split: its first dimension over the batch axes."""
        axes = self.batch_axis_names
        if axes is None:
            axes = tuple(axis for axis in BATCH_AXES if axis in self.mesh.shape)
        return NamedSharding(self.mesh, canonical(P(axes)))

    @property
    def batch_ways(self) -> int:
        """Into how many parts a batch is split."""
        return ways_of(self.batch_sharding.spec, self.mesh)[0] if self.batch_sharding.spec else 1

    @property
    def replicated(self) -> NamedSharding:
        """A whole copy on each device."""
        return NamedSharding(self.mesh, P())

    def spec(self, name: str, x: jax.ShapeDtypeStruct) -> P:
        """Return the canonical spec of one array: the first rule's answer, or replicated.

        Raises:
          LayoutError: the spec has too many entries, names an axis that the mesh lacks or names one
            twice, or a dimension does not divide.
        """
        for rule in self.rules:
            answer = rule(name, x, self.mesh)
            if answer is not None:
                spec = canonical(without_absent(answer, self.mesh))
                problem = misfit(name, x.shape, spec, self.mesh)
                if problem:
                    raise LayoutError(problem)
                return spec
        return P()

    def shardings(self, arrays: PyTree) -> PyTree:
        """Return a tree of `NamedSharding`s for a tree of arrays, structs or tracers: all that is laid out.

        Raises:
          LayoutError: listing every array that does not fit, not only the first.
          UsageError: as `check`.
        """
        self.check(arrays)
        return self._shardings(arrays)

    def check(self, arrays: PyTree) -> None:
        """Check that each rule with a pattern decides something of `arrays`, which are all that are laid out.

        Rules are for every mesh: what a rule takes is decided, also where the mesh lacks its axes. Those
        without a pattern, as `fsdp`, take nothing from others here: what they take depends on the mesh.

        Raises:
          UsageError: listing all rules that decide nothing.
        """
        check_rules(self.rules, tree.leaf_names(arrays))

    def tables(self, names: Sequence[str]) -> dict[Table, Sequence[str]]:
        """Return the patterns of the rules with the names of what is laid out, for `patterns.judge`."""
        return tables_of(self.rules, names)

    def _shardings(self, arrays: PyTree) -> PyTree:
        problems: list[str] = []

        def one(name: str, x: Any) -> NamedSharding:
            try:
                return NamedSharding(self.mesh, self.spec(name, jax.ShapeDtypeStruct(x.shape, x.dtype)))
            except LayoutError as error:
                problems.append(str(error))
                return self.replicated

        placed = tree.map_named(one, arrays)
        if problems:
            raise LayoutError("\n".join(problems))
        return placed

    def place(self, arrays: PyTree) -> PyTree:
        """Return `arrays` as `ShapeDtypeStruct`s with shardings: a target to compile for or restore into."""
        return place(arrays, self.shardings(arrays))

    def explain(self, arrays: PyTree, *, width: int | None = None) -> str:
        """Return the table of what lies where, as text: shape, dtype, spec, bytes per device, and why.

        With a `width` its lines are no longer than that, where they can be.
        """
        return explain(arrays, self._shardings(arrays), self._reasons(arrays), width=width)

    def left_whole(self, arrays: PyTree) -> list[str]:
        """Return a line for each large array that every device has whole, if the mesh can split any."""
        return left_whole(arrays, self._shardings(arrays), self._reasons(arrays))

    def _reasons(self, arrays: PyTree) -> dict[str, str]:
        telling = [rule for rule in self.rules if isinstance(rule, Reasoned)]
        reasons = {name: self._reason(name, x, telling) for name, x in tree.named_leaves(arrays).items()}
        return reasons if any(reasons.values()) else {}

    def _reason(self, name: str, x: Any, telling: Sequence[Reasoned]) -> str:
        """Return the reason of the rule that decides, or of one that leaves the array whole, if they tell."""
        if not telling:
            return ""
        x = jax.ShapeDtypeStruct(x.shape, x.dtype)
        deciding = next((rule for rule in self.rules if rule(name, x, self.mesh) is not None), None)
        told = (rule.why(name, x, self.mesh) for rule in telling if deciding is None or rule is deciding)
        return next(filter(None, told), "")


def place(arrays: PyTree, shardings: PyTree) -> PyTree:
    """Return `arrays` (arrays or structs) as `ShapeDtypeStruct`s with `shardings`."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), arrays, shardings)


def canonical(spec: P) -> P:
    """Return the one spelling of `spec`: no 1-tuples, no trailing Nones."""
    entries = [entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry or None for entry in spec]
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


def without_absent(spec: P, mesh: Mesh) -> P:
    """Return `spec` without the standard axes that `mesh` lacks."""
    kept = lambda axis: axis in mesh.shape or axis not in AXES  # noqa: E731
    return P(*(tuple(filter(kept, axes_of(entry))) for entry in spec))


def ways_of(spec: P, mesh: Mesh) -> list[int]:
    """Return into how many parts `spec` splits each dimension that it names."""
    return [math.prod(mesh.shape[axis] for axis in axes_of(entry)) for entry in spec]


def axes_of(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes of one entry of a spec: `None`, one name or a tuple of names."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def misfit(name: str, shape: tuple[int, ...], spec: P, mesh: Mesh) -> str | None:
    """Return what is wrong with placing an array of `shape` as `spec`, in words for people, or None."""
    trouble = _trouble(shape, spec, mesh)
    if trouble is None:
        return None
    return (
        f"cannot split {name}: {trouble}\n"
        f"  array: shape {shape}, spec {spec}, mesh {dict(mesh.shape)}\n"
        f"  Put a rule for {name!r} before the one that matched, mend that one, or change the mesh."
    )


def _trouble(shape: tuple[int, ...], spec: P, mesh: Mesh) -> str | None:
    used = [axis for entry in spec for axis in axes_of(entry)]
    unknown = [axis for axis in used if axis not in mesh.shape]
    if unknown:
        close = nearest(unknown[0], mesh.shape)
        return f"the mesh has no axis {unknown[0]!r}." + (f" Did you mean {close!r}?" if close else "")
    if len(set(used)) < len(used):
        return "one mesh axis is used for two dimensions."
    if len(spec) > len(shape):
        return f"the spec has {len(spec)} entries, the array {len(shape)} dimensions."
    for d, ways in enumerate(ways_of(spec, mesh)):
        if shape[d] % ways:
            axes = f"mesh axis {spec[d]!r} of size {ways}"
            return f"dimension {d} has size {shape[d]}, which {axes} does not divide."
    return None
