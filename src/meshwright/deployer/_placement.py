"""The placement of arrays on the deployer's mesh: rules, specs, and arrays placed as they say."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright import tree
from meshwright.patterns import judge
from meshwright.sharding import (
    Layout,
    Rule,
    Rules,
    as_arrays,
    as_rules,
    auto,
    beside_params,
    copy_to,
    fsdp,
)
from meshwright.shown import human_bytes
from meshwright.train import init_optimizer, tables_in
from meshwright.tree import PyTree


class Split(NamedTuple):
    """A rule for one array, which can be printed and taken apart."""

    name: str
    spec: P

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        return self.spec if name == self.name else None

    @property
    def pattern(self) -> str:
        """The pattern of the one name, so that a rule for what is not there is told of."""
        return f"^{re.escape(self.name)}"

    def __str__(self) -> str:
        return f"{self.name}: {self.spec}"


@dataclass(frozen=True)
class Placement:
    """A mesh, and what is told of the arrays that are placed on it."""

    mesh: Mesh
    tell: Callable[[str], None]

    def layout(self, *rules: Rule) -> Layout:
        """Return the mesh with rules for what is placed on it; see `Layout`."""
        return Layout(self.mesh, rules)

    def get_sharding_rules(self, params_shape_or_params: PyTree) -> list[Split] | None:
        """Return a rule for each parameter that is better split over the mesh, or None if there is none.

        They are found from names and shapes, and can be printed, changed and left out. `get_params_spec` and
        `load_ckpt` take them, and `Trainer` as its `rules`, which finds good ones without them, too.
        """
        params = as_arrays(params_shape_or_params)
        placed = self.layout(auto(params), fsdp()).shardings({"params": params})
        placed = tree.named_leaves(placed)
        return [Split(name, sharding.spec) for name, sharding in placed.items() if any(sharding.spec)] or None

    def get_params_spec(self, params_shape_or_params: PyTree, rules: Rules) -> PyTree:
        """Return a tree of PartitionSpecs.

        Args:
          rules: A list of rules, or None to leave all whole. For parameters that are a
            dictionary of several models', it may be a dictionary of these.

        Raises:
          UsageError: There is something else among the rules.
          LayoutError: Listing all arrays that the mesh does not divide.
        """
        params = as_arrays(params_shape_or_params)
        layout = self.layout(*as_rules(rules, params))
        return _specs(layout.shardings({"params": params})["params"])

    def get_opt_state_spec(
        self, params_shape_or_params: PyTree, params_spec: PyTree, optimizer: optax.GradientTransformation
    ) -> PyTree:
        """Return a tree of PartitionSpecs of the optimizer's state, beside those of the parameters."""
        params = as_arrays(params_shape_or_params)
        opt_state = jax.eval_shape(partial(init_optimizer, optimizer), params)
        judge(dict.fromkeys(tables_in(opt_state), tree.leaf_names({"params": params})))
        return _specs(beside_params(opt_state, params, self.shardings(params_spec)))

    def shard_params(self, params: PyTree, params_spec: PyTree, desc: str = "params") -> PyTree:
        """Return copies of `params` on the mesh, split as `params_spec` says; the originals stay. Collective.

        Args:
          params: Arrays of JAX, NumPy or PyTorch, parameters or other ones.
          desc: The log calls them so.
        """
        params = as_arrays(params, desc)
        num_bytes = sum(getattr(x, "nbytes", 0) for x in jax.tree.leaves(params))
        self.tell(f"Sharding {desc}: {human_bytes(num_bytes)} over {dict(self.mesh.shape)}")
        return copy_to(params, self.shardings(params_spec))

    def shardings(self, specs: PyTree) -> PyTree:
        """Return a tree of specs as shardings on the mesh."""
        return jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec), specs, is_leaf=lambda x: isinstance(x, P)
        )


def _specs(shardings: PyTree) -> PyTree:
    return jax.tree.map(lambda sharding: sharding.spec, shardings)
