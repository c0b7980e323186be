"""The placement of arrays on the deployer's mesh: rules, PartitionSpecs, and sharded copies."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, human_bytes, judge, tree
from meshwright.parallel._internal import (
    Layout,
    Rule,
    Rules,
    as_arrays,
    as_rules,
    copy_to,
    fsdp,
    infer_rules,
    opt_state_shardings,
)
from meshwright.training._internal import init_optimizer, tables_in


class Split(NamedTuple):
    """A sharding rule for one array. It can be printed and unpacked as (name, spec)."""

    name: str
    spec: P

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        return self.spec if name == self.name else None

    @property
    def pattern(self) -> str:
        """The pattern that matches the name. With it a rule that matches no array is reported."""
        return f"^{re.escape(self.name)}"

    def __str__(self) -> str:
        return f"{self.name}: {self.spec}"


@dataclass(frozen=True)
class Placement:
    """Places arrays on a mesh, and logs what it places."""

    mesh: Mesh
    tell: Callable[[str], None]

    def layout(self, *rules: Rule) -> Layout:
        """Return the mesh with sharding rules; see `Layout`."""
        return Layout(self.mesh, rules)

    def get_sharding_rules(self, params_shape_or_params: PyTree) -> list[Split] | None:
        """Return a rule for each parameter that should be split over the mesh, or None if there is none.

        The rules follow from the names and shapes, and you may print, change or remove them. Give them to
        `get_params_spec`, `load_ckpt` or `Trainer(rules=...)`. Without rules, `Trainer` finds its own.

        Args:
          params_shape_or_params: The parameters, as arrays or structs.
        """
        params = as_arrays(params_shape_or_params)
        shardings = tree.named_leaves(self.layout(infer_rules(params), fsdp()).shardings({"params": params}))
        return [Split(name, s.spec) for name, s in shardings.items() if any(s.spec)] or None

    def get_params_spec(self, params_shape_or_params: PyTree, rules: Rules) -> PyTree:
        """Return the parameters' PartitionSpecs, as a tree.

        Args:
          params_shape_or_params: The parameters, as arrays or structs.
          rules: A list of sharding rules, or None to split nothing. If the parameters are a dictionary with
            several models, the rules may be a dictionary with the same keys.

        Raises:
          UsageError: A rule is not a sharding rule.
          LayoutError: The mesh does not divide some arrays. The message lists all of them.
        """
        params = as_arrays(params_shape_or_params)
        layout = self.layout(*as_rules(rules, params))
        return _specs(layout.shardings({"params": params})["params"])

    def get_opt_state_spec(
        self, params_shape_or_params: PyTree, params_spec: PyTree, optimizer: optax.GradientTransformation
    ) -> PyTree:
        """Return the PartitionSpecs of the optimizer's state, as a tree. They follow those of the parameters.

        Args:
          params_shape_or_params: The parameters, as arrays or structs.
          params_spec: The parameters' PartitionSpecs.
          optimizer: The optimizer.
        """
        params = as_arrays(params_shape_or_params)
        opt_state = jax.eval_shape(partial(init_optimizer, optimizer), params)
        judge(dict.fromkeys(tables_in(opt_state), tree.leaf_names({"params": params})))
        return _specs(opt_state_shardings(opt_state, params, self.shardings(params_spec)))

    def shard_params(self, params: PyTree, params_spec: PyTree, desc: str = "params") -> PyTree:
        """Return copies of `params` on the mesh, sharded by `params_spec`. Collective.

        Args:
          params: Arrays of JAX, NumPy or PyTorch. They need not be parameters, and they are not changed.
          params_spec: A tree of PartitionSpecs.
          desc: The name of the arrays in the log.
        """
        params = as_arrays(params, desc)
        num_bytes = sum(getattr(x, "nbytes", 0) for x in jax.tree.leaves(params))
        self.tell(f"Sharding {desc}: {human_bytes(num_bytes)} over {dict(self.mesh.shape)}")
        return copy_to(params, self.shardings(params_spec))

    def shardings(self, specs: PyTree) -> PyTree:
        """Return a tree of shardings on the mesh, given a tree of specs."""
        return jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec), specs, is_leaf=lambda x: isinstance(x, P)
        )


def _specs(shardings: PyTree) -> PyTree:
    return jax.tree.map(lambda sharding: sharding.spec, shardings)
