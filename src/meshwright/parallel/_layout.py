"""`Layout`: a mesh, the rules that split parameters over it, and the split of batches and optimizer state.

Specs are made canonical here and nowhere else. For `jit`'s cache `P("a", None)` differs from `P("a")`: a
state that enters a step as one and leaves as the other would compile twice.

Optimizers keep trees shaped like the parameters (Adam's moments), trees with one dimension less (Adafactor's
factors), and scalars. The parameter of a state leaf is found by the end of the leaf's name, which is the
parameter's name, and then by its shape. The code does not rely on optax's tree structure.
"""

import math
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, Table, documented, mesh_text, tree
from meshwright.errors import LayoutError, did_you_mean, listed
from meshwright.parallel._axes import AXES, batch_axes, num_stages
from meshwright.parallel._explain import PlacementTable, explain, left_whole
from meshwright.parallel._rules import HasReason, Rule, check_rules, fsdp, tables_of

MICROBATCH = "microbatch"
"""The name of the dimension of microbatches, bound while a loss is traced for one of those in a pipeline."""


@documented
@dataclass(frozen=True)
class Layout:
    """The placement of arrays: a mesh, and rules that split arrays over it.

    For each array the first rule that does not answer None decides.

    Raises:
      LayoutError: A batch axis is not in the mesh.

    Example:
      >>> mesh = mw.make_mesh("fsdp=4,tensor=2")
      >>> layout = mw.Layout(mesh, (mw.parallel.match("head", None, "tensor"), mw.parallel.fsdp()))
      >>> layout.spec("head", jnp.ones((512, 256)))
      P(None, 'tensor')
      >>> layout
      Layout(mesh fsdp=4,tensor=2, rules: match, fsdp, batches over fsdp)
    """

    mesh: Mesh
    """The devices along named axes, as `mw.make_mesh` returns."""
    rules: tuple[Rule, ...] = (fsdp(),)
    """Functions `(name, array, mesh) -> PartitionSpec or None`.

    An array that no rule decides is replicated.
    """
    batch_axis_names: tuple[str, ...] | None = None
    """Mesh axes that split the first dimension of a batch.

    None means `data`, `fsdp`, `expert` and `pipeline`, if the mesh has them.
    """

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
        """Sharding of each leaf of a batch: the first dimension is split over the batch axes."""
        axes = self.batch_axis_names
        if axes is None:
            axes = batch_axes(self.mesh.shape)
        return NamedSharding(self.mesh, canonical(P(axes)))

    @property
    def batch_ways(self) -> int:
        """Number of parts that a batch is split into."""
        return num_shards(self.batch_sharding.spec, self.mesh)[0] if self.batch_sharding.spec else 1

    @property
    def num_stages(self) -> int:
        """Number of stages into which stacks of layers are split."""
        return num_stages(self.mesh.shape)

    @property
    def replicated(self) -> NamedSharding:
        """Sharding with a whole copy on each device."""
        return NamedSharding(self.mesh, P())

    def spec(self, name: str, x: jax.ShapeDtypeStruct) -> P:
        """Return the canonical spec of one array, by its name: the first rule's answer, or replicated.

        Raises:
          LayoutError: The spec has too many entries, names a mesh axis twice or one that the mesh lacks, or a
            dimension is not divisible.
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
        """Return a tree of `NamedSharding`s for all arrays, structs or tracers that are laid out.

        Raises:
          LayoutError: Some arrays do not fit; all of them are listed.
          UsageError: A rule decides nothing, as `check` says.
        """
        self.check(arrays)
        return self._shardings(arrays)

    def check(self, arrays: PyTree) -> None:
        """Check that each rule with a pattern decides at least one of all arrays that are laid out.

        A rule counts as used if its pattern matches, even if the mesh lacks its axes: rules serve every mesh.
        Rules without a pattern, such as `fsdp`, are not checked and take no array from later rules here,
        since what they split depends on the mesh.

        Raises:
          UsageError: Some rules decide nothing; all of them are listed.
        """
        check_rules(self.rules, tree.leaf_names(arrays))

    def tables(self, names: Sequence[str]) -> dict[Table, Sequence[str]]:
        """Return the patterns of the rules with the names of all arrays, for `patterns.judge`."""
        return tables_of(self.rules, names)

    def _shardings(self, arrays: PyTree) -> PyTree:
        problems: list[str] = []

        def sharding(name: str, x: Any) -> NamedSharding:
            try:
                return NamedSharding(self.mesh, self.spec(name, jax.ShapeDtypeStruct(x.shape, x.dtype)))
            except LayoutError as error:
                problems.append(str(error))
                return self.replicated

        placed = tree.map_named(sharding, arrays)
        if problems:
            raise LayoutError("\n".join(problems))
        return placed

    def place(self, arrays: PyTree) -> PyTree:
        """Return `arrays` as `ShapeDtypeStruct`s with shardings: a target to compile for or restore into."""
        return place(arrays, self.shardings(arrays))

    def explain(
        self, arrays: PyTree, *, frozen: Collection[str] = (), width: int | None = None
    ) -> PlacementTable:
        """Return a table of the placement of each array: shape, dtype, spec, bytes per device and reason.

        Its lines have at most `width` characters, if the table can be made so narrow. Arrays whose names are
        in `frozen` are marked.
        """
        shardings, reasons = self._shardings(arrays), self._reasons(arrays)
        return explain(arrays, shardings, reasons, frozen=frozen, width=width)

    def left_whole(self, arrays: PyTree) -> list[str]:
        """Return a line for each large array that every device holds whole, if the mesh could split any."""
        return left_whole(arrays, self._shardings(arrays), self._reasons(arrays))

    def _reasons(self, arrays: PyTree) -> dict[str, str]:
        explaining = [rule for rule in self.rules if isinstance(rule, HasReason)]
        reasons = {name: self._reason(name, x, explaining) for name, x in tree.named_leaves(arrays).items()}
        return reasons if any(reasons.values()) else {}

    def _reason(self, name: str, x: Any, explaining: Sequence[HasReason]) -> str:
        """Return the reason of the rule that decides, or of a rule that leaves the array whole.

        Else nothing.
        """
        if not explaining:
            return ""
        x = jax.ShapeDtypeStruct(x.shape, x.dtype)
        deciding = next((rule for rule in self.rules if rule(name, x, self.mesh) is not None), None)
        reasons = (
            rule.why(name, x, self.mesh) for rule in explaining if deciding is None or rule is deciding
        )
        return next(filter(None, reasons), "")


def place(arrays: PyTree, shardings: PyTree) -> PyTree:
    """Return `arrays` as `ShapeDtypeStruct`s with shardings.

    Example:
      >>> arrays = {"w": jnp.ones((512, 256))}
      >>> shardings = mw.Layout(mw.make_mesh("fsdp=8")).shardings(arrays)
      >>> mw.parallel._internal.place(arrays, shardings)["w"].shape
      (512, 256)
    """
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), arrays, shardings)


def canonical(spec: P) -> P:
    """Return the one spelling of `spec`: no 1-tuples, no trailing Nones."""
    entries = [entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry or None for entry in spec]
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


def without_absent(spec: P, mesh: Mesh) -> P:
    """Return `spec` without the standard axes that `mesh` lacks."""
    entries = (
        tuple(axis for axis in axes_of(entry) if axis in mesh.shape or axis not in AXES) for entry in spec
    )
    return P(*entries)


def num_shards(spec: P, mesh: Mesh) -> list[int]:
    """Return the number of parts that `spec` splits each dimension into."""
    return [math.prod(mesh.shape[axis] for axis in axes_of(entry)) for entry in spec]


def axes_of(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes of one entry of a spec: `None`, one name or a tuple of names."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def misfit(name: str, shape: tuple[int, ...], spec: P, mesh: Mesh) -> str | None:
    """Return the error message for an array of `shape` that cannot be split as `spec`; None if it can."""
    problem = _problem(shape, spec, mesh)
    if problem is None:
        return None
    return (
        f"cannot split {name}: {problem}\n"
        f"  array: shape {shape}, spec {spec}, mesh {dict(mesh.shape)}\n"
        f"  Put a rule for {name!r} before the one that matched, correct that one, or change the mesh."
    )


def _problem(shape: tuple[int, ...], spec: P, mesh: Mesh) -> str | None:
    used = [axis for entry in spec for axis in axes_of(entry)]
    unknown = [axis for axis in used if axis not in mesh.shape]
    if unknown:
        return f"the mesh has no axis {unknown[0]!r}." + did_you_mean(unknown[0], mesh.shape)
    if len(set(used)) < len(used):
        return "one mesh axis is used for two dimensions."
    if len(spec) > len(shape):
        return f"the spec has {len(spec)} entries, the array {len(shape)} dimensions."
    for d, ways in enumerate(num_shards(spec, mesh)):
        if shape[d] % ways:
            axes = f"mesh axis {spec[d]!r} of size {ways}"
            return f"dimension {d} has size {shape[d]}, which {axes} does not divide."
    return None


def opt_state_shardings(state: PyTree, params: PyTree, shardings: PyTree) -> PyTree:
    """Return the shardings of optimizer state for given shardings of the parameters.

    A leaf with a parameter's name and shape is placed like that parameter. With one more leading dimension it
    is placed as a stack of them; with one dimension less, by the remaining entries of the spec. All other
    leaves are replicated.

    Example:
      >>> params = {"w": jnp.ones((512, 256))}
      >>> shardings = mw.Layout(mw.make_mesh("fsdp=8")).shardings(params)
      >>> state = optax.adam(1e-3).init(params)
      >>> mw.parallel._internal.opt_state_shardings(state, params, shardings)[0].mu["w"].spec
      P('fsdp',)
    """
    named = tree.named_leaves(params)
    placed = tree.named_leaves(shardings)
    specs = {name: (x.shape, placed[name].spec) for name, x in named.items()}
    mesh = next(iter(placed.values())).mesh

    def sharding(name: str, x: Any) -> NamedSharding:
        parameter = parameter_of(name, specs)
        return NamedSharding(mesh, P() if parameter is None else _spec_like(name, x, *specs[parameter]))

    return tree.map_named(sharding, state)


def parameter_of(name: str, parameters: Container[str]) -> str | None:
    """Return the longest end of `name` that is a parameter's name; None if there is none.

    Example:
      >>> mw.parallel._internal.parameter_of("0/mu/layer/w", {"layer/w"})
      'layer/w'
    """
    parts = name.split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts) + 1))
    return next((end for end in ends if end in parameters), None)


def _spec_like(name: str, x: jax.ShapeDtypeStruct, shape: tuple[int, ...], spec: P) -> P:
    """Return the spec of the state leaf `name` for a parameter with this shape and spec."""
    if x.shape == shape:
        return spec
    # L-BFGS keeps stacks of several.
    if x.shape[1:] == shape:
        return canonical(P(None, *spec))
    fit = [d for d in range(len(shape)) if x.shape == shape[:d] + shape[d + 1 :]]
    if not fit:
        return P()
    # For a square parameter, optax's factor `v_row` lacks the columns and `v_col` the rows.
    dropped = fit[-1] if "v_row" in name.split("/") else fit[0]
    entries = list(spec) + [None] * (len(shape) - len(spec))
    return canonical(P(*entries[:dropped], *entries[dropped + 1 :]))
